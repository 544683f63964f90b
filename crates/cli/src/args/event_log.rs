//! `--log`: where the events of a sandbox are written too.

use clap::Args;
use penfold_process::path_text::path_of_text;
use penfold_state::EventLog;

use crate::failure::{Failure, FailureKind, OrFail as _};
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

/// Returns an event log, after a check that it can be written.
///
/// # Errors
/// When it cannot be written: nothing is started then.
pub(crate) fn open(given: &str) -> Result<EventLog, Failure> {
    let cannot = || format!("cannot write events to `{given}`");
    let event_log = if given == value::JOURNALD {
        EventLog::Journald
    } else {
        let path = std::path::absolute(path_of_text(given)).or_fail(FailureKind::NotStarted, &cannot())?;
        EventLog::File(path)
    };
    event_log.check().or_fail(FailureKind::NotStarted, &cannot())?;
    Ok(event_log)
}
