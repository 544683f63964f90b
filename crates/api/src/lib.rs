//! The bodies of the native API that server and clients share.
//!
//! The server makes them, and clients read them. Fields are only ever added; a missing one has its default.

mod token_line;

use std::collections::BTreeMap;
use std::path::PathBuf;

use penfold_control::SandboxView;
use penfold_process::ProcessId;
use penfold_request::Profile;
use penfold_state::outcome::ExitStatus;
use penfold_state::state::{ExecState, Status};
use penfold_state::{Intent, Limits, Report};
use penfold_teardown::{Cause, Level};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use token_line::{LONGEST_TOKEN, SHORTEST_TOKEN, TokenLine, is_token_byte};

/// A sandbox, as observed at one moment.
#[expect(clippy::struct_excessive_bools, reason = "facts that have nothing to do with each other")]
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    /// The id: 12 hexadecimal digits.
    #[schema(example = "3f9c07a1b2c4")]
    pub id: String,
    /// The name.
    pub name: Option<String>,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The command, shortened.
    pub command: Vec<String>,
    /// The status: `created`, `running`, `paused`, `waiting` (for its next start), `stopping`, `unkillable`, `exited`, `failed`,
    /// `killed`, `orphaned` or `lost`.
    #[schema(value_type = String)]
    pub status: Status,
    /// Whether something of the sandbox may be alive.
    pub living: bool,
    /// How the command ended: `{"code": N}` or `{"signal": N}`; null if it has not ended, or the exit is unknown.
    #[schema(value_type = Option<Object>)]
    pub exit: Option<ExitStatus>,
    /// Why the sandbox ended: `exit`, `signal`, `start-failed`, `timeout`, `ttl`, `idle`, `memory`, `oom`, `stop`, `kill`, `owner`,
    /// `supervisor` or `lost`.
    #[schema(value_type = Option<String>)]
    pub cause: Option<Cause>,
    /// How membership is known: `cgroup`, `pidns`, `subreaper` or `tree`.
    #[schema(value_type = Option<String>)]
    pub level: Option<Level>,
    /// What the command was put into: `jail` or `vmm`; null if nothing. Each exec and session of a jail runs in the jail.
    #[serde(default)]
    pub profile: Option<Profile>,
    /// Whether the sandbox is detached.
    pub detached: bool,
    /// The start of the command, in milliseconds since 1970.
    pub started_at_ms: Option<u64>,
    /// The end of the command, in milliseconds since 1970.
    pub ended_at_ms: Option<u64>,
    /// The end of the lease, in milliseconds since 1970.
    pub expires_at_ms: Option<u64>,
    /// Whether the probe of `penfold run --ready` has succeeded; null without a probe.
    #[serde(default)]
    pub ready: Option<bool>,
    /// The number of restarts: all lives of a sandbox have one id.
    #[serde(default)]
    pub restarts: u32,
    /// The time of the next start, in milliseconds since 1970, while the status is `waiting`.
    #[serde(default)]
    pub next_start_at_ms: Option<u64>,
    /// The first process.
    #[schema(value_type = Option<Object>)]
    pub leader: Option<ProcessId>,
    /// The processes of penfold that own the sandbox.
    #[schema(value_type = Vec<Object>)]
    pub supervisors: Vec<ProcessId>,
    /// The execs that run.
    #[schema(value_type = Vec<Object>)]
    pub execs: Vec<ExecState>,
    /// The enclosing sandboxes, outermost first.
    pub within: Vec<String>,
    /// The directory in which the command started: the workspace.
    #[schema(value_type = Option<String>)]
    #[serde(default, with = "penfold_process::path_text")]
    pub workspace: Option<PathBuf>,
    /// The scratch directory.
    #[schema(value_type = Option<String>)]
    #[serde(default, with = "penfold_process::path_text")]
    pub scratch: Option<PathBuf>,
    /// The directory of the cgroup.
    #[schema(value_type = Option<String>)]
    #[serde(default, with = "penfold_process::path_text")]
    pub leaf: Option<PathBuf>,
    /// The limits of the cgroup: `memory_bytes`, `pids` and `cpus`, each only if it is limited.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub limits: Limits,
    /// The sandbox is known to belong to the server's state root. Of an orphan without a record nobody can tell.
    #[serde(default = "yes")]
    pub claimed: bool,
    /// The supervisor is in another mount namespace, such as that of a container.
    #[serde(default)]
    pub elsewhere: bool,
    /// The features that the host lacks, and the consequences.
    pub missing: Vec<String>,
    /// The evidence for the status of a sandbox without a supervisor.
    pub evidence: Vec<String>,
    /// The damage of the record.
    pub damage: Vec<String>,
}

/// What an older server means, which does not say whether a sandbox is claimed.
fn yes() -> bool {
    true
}

impl Sandbox {
    /// Makes the answer about a sandbox, from its intent and its view.
    pub fn of(intent: Option<&Intent>, view: SandboxView) -> Sandbox {
        Sandbox {
            id: view.id,
            name: view.name,
            labels: view.labels,
            command: view.command,
            living: view.status.is_living(),
            status: view.status,
            exit: view.exit,
            cause: view.cause,
            level: view.level,
            profile: view.profile.map(Profile::from),
            detached: view.detached,
            started_at_ms: view.started_at_ms,
            ended_at_ms: view.ended_at_ms,
            expires_at_ms: view.expires_at_ms,
            ready: view.ready,
            restarts: view.restarts,
            next_start_at_ms: view.next_start_at_ms,
            leader: view.leader,
            supervisors: view.supervisors,
            execs: view.execs,
            within: view.within,
            workspace: intent.and_then(|intent| intent.workspace.clone()),
            scratch: view.scratch,
            leaf: view.leaf,
            limits: view.limits,
            claimed: view.claimed,
            elsewhere: view.elsewhere,
            missing: view.missing,
            evidence: view.evidence,
            damage: view.damage,
        }
    }

    /// Makes the view of the sandbox for a client: without the owner and the record, which only the server's host has.
    pub fn into_view(self) -> SandboxView {
        SandboxView {
            id: self.id,
            name: self.name,
            labels: self.labels,
            command: self.command,
            status: self.status,
            exit: self.exit,
            cause: self.cause,
            level: self.level,
            profile: self.profile.map(Profile::into),
            detached: self.detached,
            owner: None,
            started_at_ms: self.started_at_ms,
            ended_at_ms: self.ended_at_ms,
            expires_at_ms: self.expires_at_ms,
            ready: self.ready,
            restart_of: None,
            restarts: self.restarts,
            next_start_at_ms: self.next_start_at_ms,
            leader: self.leader,
            supervisors: self.supervisors,
            execs: self.execs,
            within: self.within,
            leaf: self.leaf,
            limits: self.limits,
            scratch: self.scratch,
            record: None,
            claimed: self.claimed && !self.elsewhere,
            elsewhere: self.elsewhere,
            missing: self.missing,
            evidence: self.evidence,
            damage: self.damage,
        }
    }
}

/// A page of sandboxes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SandboxPage {
    /// The sandboxes, the youngest last.
    pub sandboxes: Vec<Sandbox>,
    /// The `cursor` of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// The result of a stop, kill or delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndResult {
    /// Everything was observed gone.
    Gone,
    /// It had ended before the request.
    AlreadyGone,
    /// The end has begun (`wait=0`).
    Accepted,
}

/// The answer to a stop, kill or delete.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    /// The sandbox.
    pub id: String,
    /// The result.
    pub result: EndResult,
    /// The path of the report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_url: Option<String>,
    /// The report of the end, if it is kept.
    #[schema(value_type = Option<Object>)]
    pub report: Option<Report>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 5.16
    #[test]
    fn a_client_learns_that_a_sandbox_is_elsewhere_and_an_older_server_does_not_say_it() {
        let text = r#"{"id":"3f9c07a1b2c4","name":null,"labels":{},"command":[],"status":"running","living":true,
            "exit":null,"cause":null,"level":null,"detached":true,"started_at_ms":null,"ended_at_ms":null,
            "expires_at_ms":null,"leader":null,"supervisors":[],"execs":[],"within":[],"workspace":null,"scratch":null,
            "leaf":null,"missing":[],"evidence":[],"damage":[]}"#;
        let mut sandbox: Sandbox = serde_json::from_str(text).unwrap();
        assert!(!sandbox.elsewhere && sandbox.claimed);
        sandbox.elsewhere = true;
        let view = sandbox.into_view();
        assert!(view.elsewhere && !view.claimed);
        assert!(Sandbox::of(None, view).elsewhere);
    }
}
