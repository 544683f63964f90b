//! The flags of `run` for detached sandboxes.

use std::time::Duration;

use clap::{Args, ValueEnum};
use penfold_state::OnFailure;

use crate::value;

/// The size of a log without `--log-size`.
pub(super) const LOG_SIZE: u64 = 64 << 20;

/// Parses the value of `--restart`.
pub(super) fn restart_policy(text: &str) -> Result<OnFailure, String> {
    let wrong = || "it is neither `on-failure` nor `on-failure:N`".to_owned();
    match text.strip_prefix("on-failure").ok_or_else(wrong)? {
        "" => Ok(OnFailure { most: None }),
        most => {
            let most = most.strip_prefix(':').and_then(|most| most.parse().ok()).filter(|most| *most > 0);
            most.map(|most| OnFailure { most: Some(most) }).ok_or_else(wrong)
        }
    }
}

/// The text of a policy, as [`restart_policy`] reads it.
pub(super) fn policy_text(policy: OnFailure) -> String {
    match policy.most {
        None => "on-failure".to_owned(),
        Some(most) => format!("on-failure:{most}"),
    }
}

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
        value_parser = restart_policy,
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
