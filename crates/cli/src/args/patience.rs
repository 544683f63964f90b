//! How long a kill may take until what is left is reported: a flag of every verb that kills.

use std::time::Duration;

use clap::Args;

use crate::value;

/// For verbs that decide it themselves.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// How long a kill may take until what is left is reported.
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        default_value = "10s"
    )]
    pub(crate) patience: Duration,
}

/// For verbs that end sandboxes, which were made with one.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct PatienceOverride {
    /// How long a kill may take until what is left is reported [default: what the sandbox was made with].
    #[arg(long, value_name = "DURATION", value_parser = value::duration, allow_hyphen_values = true)]
    pub(crate) patience: Option<Duration>,
}
