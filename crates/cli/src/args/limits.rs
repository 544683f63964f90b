//! `--memory`, `--pids` and `--cpus`: the limits of a sandbox.

use std::time::Duration;

use clap::Args;
use penfold_state::Limits;

use crate::value;

/// The limits of all members together.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// The most memory of all members together; beyond it the kernel kills all of them.
    #[arg(long, value_name = "SIZE", value_parser = value::memory, allow_hyphen_values = true)]
    memory: Option<u64>,
    /// The most processes and threads; beyond it fork(2) fails with EAGAIN.
    #[arg(long, value_name = "N", value_parser = value::pids, allow_hyphen_values = true)]
    pids: Option<u64>,
    /// The most processor time, as a number of processors such as 1.5.
    #[arg(long, value_name = "N", value_parser = value::cpus, allow_hyphen_values = true)]
    cpus: Option<Duration>,
}

impl LimitArgs {
    /// The limits, as the record has them.
    pub(crate) fn limits(&self) -> Limits {
        let &LimitArgs { memory, pids, cpus } = self;
        Limits { memory_bytes: memory, pids, cpus }
    }
}
