//! The flags of `run` for the end: what asks the members before the polite signal, and which of them are left alone.

use clap::Args;
use penfold_request::StopChannel;
use penfold_teardown::SpareRule;

use crate::value::spare_rule;

/// The flags about the stop command.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options for the end")]
pub(crate) struct StopArgs {
    #[arg(
        long,
        value_name = "LINE",
        help = "Shell command that asks the members to end, instead of the polite signal for the first half of the grace"
    )]
    stop_command: Option<String>,
}

impl StopArgs {
    /// Returns the request that the user gave.
    pub(super) fn request(&self) -> Option<StopChannel> {
        let StopArgs { stop_command } = self;
        let line = stop_command.as_ref()?;
        Some(StopChannel::Command(["sh", "-c", line].map(str::to_owned).into()))
    }
}

/// The rules of `run`.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options for the end")]
pub(crate) struct SpareArgs {
    #[arg(
        long,
        visible_alias = "ignore",
        value_name = "RULE",
        value_parser = spare_rule,
        help = "Leave daemons alone at the end, and name them: NAME or PATH of the executable file, NAME:WORD with a word of the \
            command line (java:org.gradle.launcher.daemon.bootstrap.GradleDaemon); may be repeated"
    )]
    pub(crate) spare: Vec<SpareRule>,
    /// Let CMD start sandboxes that outlive this one (`penfold run -d --outside`), and hand processes over (`penfold keep`).
    #[arg(long)]
    pub(crate) allow_outside: bool,
}
