//! `--log`: where the events of a sandbox are written too.

use clap::Args;

use crate::value;

/// The flag `--log`.
#[derive(Args, Clone, Debug)]
pub(crate) struct EventLogArgs {
    #[arg(
        long,
        value_name = "journald|FILE",
        value_parser = value::event_log,
        value_hint = clap::ValueHint::FilePath,
        help = "Write the events of the sandbox to journald or to FILE, too, as JSON lines; in the foreground only what was left \
            [default: `log` of the configuration]"
    )]
    pub(crate) log: Option<String>,
}
