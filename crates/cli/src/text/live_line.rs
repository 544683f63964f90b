//! A line on a terminal that is written again and again, and erased at the end: the progress of long work.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use crate::output;
use crate::text::lines;

/// The shortest time between two writes.
const INTERVAL: Duration = Duration::from_millis(250);
/// The width where the terminal does not tell.
const WIDTH: usize = 80;

/// The line. Dropping it erases it.
#[derive(Debug)]
pub(crate) struct LiveLine {
    /// Whether standard error is a terminal, and `--quiet` is not given.
    is_wanted: bool,
    is_shown: bool,
    next: Option<Instant>,
}

impl LiveLine {
    /// A line that is not shown yet, and never if `is_quiet`.
    pub(crate) fn new(is_quiet: bool) -> LiveLine {
        LiveLine { is_wanted: !is_quiet && std::io::stderr().is_terminal(), is_shown: false, next: None }
    }

    /// Whether somebody can read the line.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Shows a text, unless the last one is too young. A text that is slow to find is found less often.
    pub(crate) fn show(&mut self, text: impl FnOnce() -> String) {
        let begun = Instant::now();
        if !self.is_wanted || self.next.is_some_and(|next| begun < next) {
            return;
        }
        let mut line = String::new();
        lines::say(&mut line, &text());
        let width = output::message_width().unwrap_or(WIDTH);
        // A line of the whole width would wrap, and could not be erased.
        let line: String = line.trim_end().chars().take(width.saturating_sub(1)).collect();
        output::message(&format!("\r\x1b[K{line}"));
        self.is_shown = true;
        self.next = begun.checked_add(INTERVAL.max(begun.elapsed() * 4));
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        if self.is_shown {
            output::message("\r\x1b[K");
        }
    }
}
