//! What a launch says while it goes on, and what is left of one that failed, on standard error.

use penfold_control::{EndProgress, SandboxRef};
use penfold_launch::caller::{Explainer, Warning};
use penfold_launch::{LaunchError, Remains};

use crate::args::verb::Global;
use crate::output;
use crate::sandboxes::tally;
use crate::text::{lines, summary, terminal_output};

/// The most lines of the log that are shown, and the most characters of each.
const SHOWN_LINES: usize = 10;
const SHOWN_WIDTH: usize = 500;

/// Writes what a launch says to standard error.
pub(super) struct Messages<'a>(pub(super) &'a Global);

impl Explainer for Messages<'_> {
    fn warn(&mut self, warning: &Warning) {
        match warning {
            Warning::UnexpectedEnd { .. } if self.0.quiet => {}
            Warning::UnexpectedEnd { id, reason } => {
                output::message(&format!("penfold: sandbox {id}: {reason}\n"));
            }
            Warning::ReadyNotNoted { id, error } => {
                let mut text = String::new();
                lines::say(&mut text, &format!("cannot note that sandbox {id} is ready: {error}"));
                output::message(&text);
            }
        }
    }

    fn replacement<'a>(&'a mut self, targets: &'a [SandboxRef]) -> Box<dyn FnMut(EndProgress) + 'a> {
        Box::new(tally::progress(self.0, "stopping", targets))
    }
}

/// Prints what is left of a sandbox that was ended because its start failed.
pub(super) fn print_remains(error: &LaunchError) {
    match error.remains.as_deref() {
        None => {}
        Some(Remains::OfStart(outcome)) => output::message(&summary::survivors(outcome)),
        Some(Remains::OfUnready { id, output, survivors }) => {
            let mut text = String::new();
            let log = terminal_output::lines(output);
            for line in log.get(log.len().saturating_sub(SHOWN_LINES)..).unwrap_or_default() {
                text.push_str("log: ");
                text.push_str(&lines::cut(line, SHOWN_WIDTH));
                text.push('\n');
            }
            for survivor in survivors {
                lines::push(&mut text, &format!("{id}  not gone: {survivor}"));
                text.push('\n');
            }
            output::message(&text);
        }
    }
}
