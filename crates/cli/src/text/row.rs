//! A sandbox as `--json` prints it.

use std::path::PathBuf;

use penfold_control::{SandboxUsage, SandboxView};
use penfold_process::Port;
use serde::Serialize;

use crate::text::time;

/// A sandbox as `--json` prints it.
#[derive(Serialize)]
pub(crate) struct Row<'a> {
    pub(crate) schema: u32,
    #[serde(flatten)]
    pub(crate) view: &'a SandboxView,
    #[serde(flatten)]
    pub(crate) times: Times,
    /// The user and the state root, in a list of all users' sandboxes.
    #[serde(flatten)]
    pub(crate) home: Option<&'a UserHome>,
    /// What the sandbox uses, if it was asked for and the sandbox has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Numbers>,
    /// The TCP ports on which members listen, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ports: Option<&'a [Port]>,
}

/// The numbers of ports, each once, separated by commas.
pub(crate) fn numbers(ports: &[Port]) -> String {
    let mut numbers: Vec<u16> = ports.iter().map(|port| port.port).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
}

/// The times of a sandbox as people read them, beside those in milliseconds.
#[derive(Clone, Debug, Serialize)]
#[expect(clippy::struct_field_names, reason = "the names in JSON")]
pub(crate) struct Times {
    pub(crate) started_at: Option<String>,
    pub(crate) ended_at: Option<String>,
    pub(crate) expires_at: Option<String>,
}

impl Times {
    fn of(view: &SandboxView) -> Times {
        let [started_at, ended_at, expires_at] =
            [view.started_at_ms, view.ended_at_ms, view.expires_at_ms].map(|time| time.map(time::utc_ms));
        Times { started_at, ended_at, expires_at }
    }
}

/// What a sandbox uses.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Numbers {
    #[serde(flatten)]
    pub(crate) usage: SandboxUsage,
    /// The use of CPU since the last look, in percent of one CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_percent: Option<f64>,
}

/// The user of a sandbox, and the state root with its record.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct UserHome {
    /// The number of the user.
    pub(crate) uid: u32,
    /// The name of the user; `None` if `/etc/passwd` has none.
    pub(crate) user: Option<String>,
    /// The state root.
    #[serde(with = "penfold_process::path_text")]
    pub(crate) root: PathBuf,
}

impl Row<'_> {
    pub(crate) fn of(view: &SandboxView) -> Row<'_> {
        let times = Times::of(view);
        Row { schema: penfold_state::record::SCHEMA, view, times, home: None, usage: None, ports: None }
    }
}
