//! The progress messages while penfold ends sandboxes, and the results.

use std::io::IsTerminal as _;
use std::time::Duration;

use penfold_control::{Progress, StopResult};

use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind};
use crate::text::lines::{self, count};
use crate::{exit_codes, output};

/// The time before the first progress message.
const PROGRESS_DELAY: Duration = Duration::from_millis(300);
/// The time between two progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Returns a callback that prints progress messages to a terminal.
pub(crate) fn progress(global: &Global, doing: &str) -> impl FnMut(Progress) {
    let watched = !global.quiet && std::io::stderr().is_terminal();
    let doing = doing.to_owned();
    let mut next = PROGRESS_DELAY;
    move |progress| {
        if watched && progress.since >= next {
            next = progress.since + PROGRESS_INTERVAL;
            let left = count(progress.left, "sandbox", "sandboxes");
            output::message(&format!("penfold: {doing} {left}\n"));
        }
    }
}

/// The results for several sandboxes, and the exit code for all of them.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    data: String,
    code: u8,
}

impl Tally {
    /// Records a success: prints the id.
    pub(crate) fn done(&mut self, id: &str) {
        self.data.push_str(id);
        self.data.push('\n');
    }

    /// Records the result of a stop or kill.
    pub(crate) fn stop_result(&mut self, id: &str, stop_result: StopResult) {
        match stop_result {
            StopResult::Gone => self.done(id),
            StopResult::Left(survivors) => {
                let mut text = String::new();
                for survivor in survivors {
                    lines::push(&mut text, &format!("{id}  not gone: {survivor}"));
                    text.push('\n');
                }
                output::message(&text);
                self.note(exit_codes::STILL_THERE);
            }
            StopResult::Failed(error) => {
                let kind = FailureKind::from(&error);
                let failure = Failure::new(kind, format!("cannot end sandbox {id}")).because(error);
                self.failed(&failure, false);
            }
        }
    }

    /// Prints a failure and records its exit code.
    pub(crate) fn failed(&mut self, failure: &Failure, coloured: bool) {
        self.note(failure.report(coloured));
    }

    /// Prints the failures of arguments that select no sandbox.
    pub(crate) fn missed(&mut self, global: &Global, missed: &[Failure]) {
        for failure in missed {
            self.failed(failure, global.color.wanted(&std::io::stderr()));
        }
    }

    /// Records an exit code. [`exit_codes::STILL_THERE`] wins; otherwise the first failure does.
    pub(crate) fn note(&mut self, code: u8) {
        if self.code == exit_codes::SUCCESS || code == exit_codes::STILL_THERE {
            self.code = code;
        }
    }

    /// Prints the ids of the successes; returns the exit code.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub(crate) fn finish(self) -> Result<u8, Failure> {
        output::data(self.data.as_bytes())?;
        Ok(self.code)
    }
}
