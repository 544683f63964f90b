//! The progress messages while penfold ends sandboxes, and the results.

use std::time::Duration;

use penfold_control::{EndProgress, SandboxRef, StopResult};
use penfold_teardown::Survivor;

use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::select::Shown;
use crate::text::lines::{self, count};
use crate::text::live_line::LiveLine;
use crate::{exit_codes, output};

/// The time before the first progress message.
const PROGRESS_DELAY: Duration = Duration::from_millis(300);
/// The time before a message says what the end waits for.
const AWAITED_DELAY: Duration = Duration::from_secs(1);

/// Returns a callback that shows the progress on a terminal, in a line that goes when the callback is dropped.
pub(crate) fn progress(global: &Global, doing: &str, targets: &[SandboxRef]) -> impl FnMut(EndProgress) {
    let mut line = LiveLine::new(global.quiet);
    let doing = doing.to_owned();
    move |progress| {
        if progress.since < PROGRESS_DELAY {
            return;
        }
        line.show(|| {
            let left = count(progress.left, "sandbox", "sandboxes");
            let awaited = if progress.since < AWAITED_DELAY { None } else { awaited(targets) };
            let awaited = awaited.map_or_else(String::new, |awaited| format!(": {awaited}"));
            format!("{doing} {left}{awaited}")
        });
    }
}

/// What the end of the first sandbox that has not ended waits for.
fn awaited(targets: &[SandboxRef]) -> Option<String> {
    let lives = |known: &&SandboxRef| known.record.as_ref().is_some_and(|record| !record.lock().is_free());
    let known = targets.iter().find(lives)?;
    let awaited = penfold_control::describe_remains(known.intent.as_ref()?);
    Some(if targets.len() > 1 { format!("{}: {awaited}", known.id) } else { awaited })
}

/// The result of an end, or of the removal of a record.
#[derive(Debug)]
pub(crate) enum EndResult {
    /// Nothing is left: this was verified.
    Gone,
    /// Something is left.
    Left(Vec<Survivor>),
    /// The sandbox could not be ended or examined, or its record not be removed.
    Failed(Failure),
}

impl EndResult {
    /// The result for the sandbox of this host with this id.
    pub(crate) fn of(id: &str, result: StopResult) -> EndResult {
        match result {
            StopResult::Gone => EndResult::Gone,
            StopResult::Left(survivors) => EndResult::Left(survivors),
            StopResult::Failed(error) => {
                let failure = Failure::new(FailureKind::from(&error), format!("cannot end sandbox {id}"));
                EndResult::Failed(failure.because(error))
            }
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

    /// Lists sandboxes that would be ended; with -q their ids only.
    pub(crate) fn would_end(&mut self, global: &Global, found: &[Shown<'_>]) {
        for shown in found {
            if global.quiet {
                self.done(shown.id);
            } else {
                lines::push(&mut self.data, &shown.line());
                self.data.push('\n');
            }
        }
    }

    /// Records the result of an end or of a removal.
    pub(crate) fn end_result(&mut self, global: &Global, id: &str, result: EndResult) {
        match result {
            EndResult::Gone => self.done(id),
            EndResult::Left(survivors) => {
                let mut text = String::new();
                for survivor in survivors {
                    lines::push(&mut text, &format!("{id}  not gone: {survivor}"));
                    text.push('\n');
                }
                output::message(&text);
                self.note(exit_codes::STILL_THERE);
            }
            EndResult::Failed(failure) => self.failed(&failure, global.color.wanted(&std::io::stderr())),
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
