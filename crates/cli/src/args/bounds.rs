//! What a command gets that is started here: its surroundings, and how its end comes about.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use crate::failure::{Failure, FailureKind};
use crate::value::{self, EnvSetting, Signal};

/// The flags that `run` and `exec` have in common.
#[derive(Args, Clone, Debug)]
pub(crate) struct Bounds {
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        help = "End it after this time; 0 means no limit"
    )]
    timeout: Option<Duration>,
    /// Time between the polite signal and KILL.
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        default_value = "10s"
    )]
    pub(crate) grace: Duration,
    /// The polite signal [default: TERM, or in a sandbox the sandbox's].
    #[arg(long, value_name = "SIGNAL", value_parser = value::signal, allow_hyphen_values = true)]
    signal: Option<Signal>,
    /// Exit with the command's code even when a time limit ended it; not with --detach.
    #[arg(long)]
    pub(crate) preserve_status: bool,
    #[arg(
        short,
        long,
        value_name = "KEY[=VALUE]",
        value_parser = OsStringValueParser::new().try_map(|text| value::env_setting(&text)),
        help = "Set a variable, or pass on the caller's; may be repeated"
    )]
    pub(crate) env: Vec<EnvSetting>,
    /// Directory to run in.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,
}

impl Bounds {
    /// The time limit, if there is one: zero is none, as in timeout(1).
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout.filter(|limit| !limit.is_zero())
    }

    /// The number of the polite signal.
    pub(crate) fn signal(&self) -> i32 {
        self.signal.map_or(rustix::process::Signal::TERM.as_raw(), Signal::number)
    }

    /// Whether it was left to what it is a part of.
    pub(crate) fn leaves_signal(&self) -> bool {
        self.signal.is_none()
    }
}

/// Flags about the exit code mean nothing where nobody waits for it, and a caller who counts on them is to know that.
pub(crate) fn refuse_code_flags(preserve: bool, fail_on_leak: bool) -> Result<(), Failure> {
    let flags = [(preserve, "--preserve-status"), (fail_on_leak, "--fail-on-leak")];
    let Some((_, flag)) = flags.into_iter().find(|(given, _)| *given) else { return Ok(()) };
    let sentence = format!("`{flag}` is about the end, which `--detach` does not wait for");
    Err(Failure::new(FailureKind::NotStarted, sentence)
        .hint("leave out one of the two; `penfold report ID` tells how a detached sandbox ended"))
}
