//! The flags of `run` for detached sandboxes.

use std::time::Duration;

use clap::{Args, ValueEnum};
use penfold_launch::ready::{Probe, TIMEOUT, parse_probe};
use penfold_launch::spec::LOG_SIZE;
use penfold_state::OnFailure;

use crate::value;

/// How long a detached sandbox lives, and what it keeps.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options of detached sandboxes")]
pub(crate) struct DetachedArgs {
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        help = "End a detached sandbox after this time, unless `penfold extend` renews it"
    )]
    pub(crate) ttl: Option<Duration>,
    /// Pause the sandbox at the end of --ttl, with its memory, and do not end it; `penfold unpause` lets it go on.
    #[arg(long, requires = "ttl")]
    pub(crate) ttl_pauses: bool,
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        help = "End a detached sandbox that had no output and no exec for this time"
    )]
    pub(crate) idle_timeout: Option<Duration>,
    #[arg(
        long,
        value_name = "WHEN",
        value_parser = value::restart_policy,
        help = "Start a detached sandbox again when CMD fails by itself: on-failure, or on-failure:N for at most N times in a row. \
            penfold waits first, from 100 ms to a minute"
    )]
    pub(crate) restart: Option<OnFailure>,
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = value::size,
        default_value = "64M",
        help = "Size of the log of a detached sandbox; a full log drops the oldest output"
    )]
    pub(crate) log_size: u64,
    /// Action when the supervisor of a detached sandbox is killed.
    #[arg(long, value_enum, value_name = "ACT", default_value = "kill")]
    pub(crate) on_supervisor_exit: OnSupervisorExit,
}

impl Default for DetachedArgs {
    fn default() -> Self {
        DetachedArgs {
            ttl: None,
            ttl_pauses: false,
            idle_timeout: None,
            restart: None,
            log_size: LOG_SIZE,
            on_supervisor_exit: OnSupervisorExit::Kill,
        }
    }
}

/// The value of `--on-supervisor-exit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnSupervisorExit {
    /// Kill the sandbox.
    Kill,
    /// Keep the sandbox running under a new supervisor.
    Keep,
}

/// The flags about readiness.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options of detached sandboxes")]
pub(crate) struct ReadyArgs {
    #[arg(
        long,
        value_name = "PROBE",
        value_parser = parse_probe,
        help = "Return only when a detached sandbox is ready, else end it: port:N (a process of it listens on TCP), log:REGEX (a \
            line of its log), http:URL (2xx or 3xx), cmd:LINE (sh -c LINE in it exits with 0), fd:N (CMD writes a line feed to \
            descriptor N)"
    )]
    pub(crate) ready: Option<Probe>,
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        default_value = "30s",
        requires = "ready",
        help = "Time in which the sandbox must be ready"
    )]
    pub(crate) ready_timeout: Duration,
}

impl Default for ReadyArgs {
    fn default() -> Self {
        ReadyArgs { ready: None, ready_timeout: TIMEOUT }
    }
}
