//! What a person hears while sandboxes are ended, and what has become of them.

use std::io::IsTerminal as _;
use std::time::Duration;

use penfold_control::{Progress, StopResult};

use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind};
use crate::text::lines::{self, count};
use crate::{exit_codes, output};

/// How long a person waits without wondering, and then for the next word.
const PROGRESS_DELAY: Duration = Duration::from_millis(300);
const AGAIN: Duration = Duration::from_secs(1);

/// Tells a person who waits how far things have come.
pub(crate) fn progress(global: &Global, doing: &str) -> impl FnMut(Progress) {
    let watched = !global.quiet && std::io::stderr().is_terminal();
    let doing = doing.to_owned();
    let mut next = PROGRESS_DELAY;
    move |progress| {
        if watched && progress.since >= next {
            next = progress.since + AGAIN;
            let left = count(progress.left, "sandbox", "sandboxes");
            output::talk(&format!("penfold: {doing} {left}\n"));
        }
    }
}

/// What has become of several sandboxes, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    data: String,
    code: u8,
}

impl Tally {
    /// Done: the id is all there is to say.
    pub(crate) fn done(&mut self, id: &str) {
        self.data.push_str(id);
        self.data.push('\n');
    }

    /// Done, or why not.
    pub(crate) fn stop_result(&mut self, id: &str, stop_result: StopResult) {
        match stop_result {
            StopResult::Gone => self.done(id),
            StopResult::Left(survivors) => {
                let mut text = String::new();
                for survivor in survivors {
                    lines::push(&mut text, &format!("{id}  not gone: {survivor}"));
                    text.push('\n');
                }
                output::talk(&text);
                self.note(exit_codes::STILL_THERE);
            }
            StopResult::Failed(error) => {
                let kind = FailureKind::from(&error);
                let failure = Failure::new(kind, format!("cannot end sandbox {id}")).because(error);
                self.failed(&failure, false);
            }
        }
    }

    /// Not done.
    pub(crate) fn failed(&mut self, failure: &Failure, coloured: bool) {
        self.note(failure.report(coloured));
    }

    /// Tells which words meant nothing.
    pub(crate) fn missed(&mut self, global: &Global, missed: &[Failure]) {
        for failure in missed {
            self.failed(failure, global.color.wanted(&std::io::stderr()));
        }
    }

    /// That something is still there is the worst; else the first failure counts.
    pub(crate) fn note(&mut self, code: u8) {
        if self.code == exit_codes::SUCCESS || code == exit_codes::STILL_THERE {
            self.code = code;
        }
    }

    /// Writes the ids of what was done; gives the exit code.
    ///
    /// # Errors
    /// When standard output cannot be written to.
    pub(crate) fn finish(self) -> Result<u8, Failure> {
        output::data(self.data.as_bytes())?;
        Ok(self.code)
    }
}
