//! `--patience`, a flag of every verb that kills: the time that a kill may take before penfold reports the survivors.

use std::time::Duration;

use clap::Args;

use crate::value;

/// `--patience` with a default, for verbs that start sandboxes or end foreign processes.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// The time that a kill may take before penfold reports the survivors.
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        default_value = "10s"
    )]
    pub(crate) patience: Duration,
}

/// `--patience` for verbs that end sandboxes: the default is the value given to `penfold run`.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct PatienceOverride {
    /// The time that a kill may take before penfold reports the survivors [default: the sandbox's value].
    #[arg(long, value_name = "DURATION", value_parser = value::duration, allow_hyphen_values = true)]
    pub(crate) patience: Option<Duration>,
}
