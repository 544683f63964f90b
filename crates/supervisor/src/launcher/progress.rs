//! The progress messages for a person who waits for the launcher.

use std::time::Duration;

use super::Launcher;
use crate::wire::{Answer, Ending};

/// The delay after which a person is told that the sandbox is being ended.
const PROGRESS_DELAY: Duration = Duration::from_millis(300);
/// The time from the end of the leader, or from the message above, until a person is told what the end waits for.
const AWAITED_DELAY: Duration = Duration::from_millis(700);
/// The time between two such messages.
const AWAITED_INTERVAL: Duration = Duration::from_millis(250);
/// The time that a command may take to clean up after Ctrl-C before a person gets a message.
const PASSED_ON_DELAY: Duration = Duration::from_secs(2);
/// The age at which a launcher frees memory. Most commands end earlier and save the work.
const FREE_MEMORY_DELAY: Duration = Duration::from_millis(5);
/// The action of the launcher after a time without events.
#[derive(Debug, Clone, Copy)]
pub(super) enum Due {
    FreeMemory,
    Report(Progress),
}

/// The progress that a waiting person may ask about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The way in which the sandbox is being ended.
    Ending(Ending),
    /// The command handles the signal of its terminal, and continues.
    PassedOn,
    /// The sandbox is still being ended; `true` after the first time.
    Awaiting(bool),
}

impl Due {
    /// Returns the time without events after which the action is due.
    pub(super) fn after(self) -> Duration {
        match self {
            Due::FreeMemory => FREE_MEMORY_DELAY,
            Due::Report(Progress::Ending(_)) => PROGRESS_DELAY,
            Due::Report(Progress::PassedOn) => PASSED_ON_DELAY,
            Due::Report(Progress::Awaiting(false)) => AWAITED_DELAY,
            Due::Report(Progress::Awaiting(true)) => AWAITED_INTERVAL,
        }
    }
}

impl Progress {
    /// The progress that is due next, if a person reads this one.
    pub(super) fn next(self) -> Option<Due> {
        match self {
            Progress::PassedOn => None,
            Progress::Ending(_) => Some(Due::Report(Progress::Awaiting(false))),
            Progress::Awaiting(_) => Some(Due::Report(Progress::Awaiting(true))),
        }
    }
}

impl Launcher {
    /// Handles an answer about the end; returns the action that is due some time after the answer. `due` is the one until now.
    pub(super) fn progress_after(&mut self, answer: &Answer, due: Option<Due>) -> Option<Due> {
        match answer {
            Answer::Ending(ending) => Some(Due::Report(Progress::Ending(*ending))),
            // Only once: each key press would otherwise write over the command's prompt.
            Answer::PassedOn if !std::mem::replace(&mut self.passed_on_shown, true) => {
                Some(Due::Report(Progress::PassedOn))
            }
            Answer::LeaderEnded => {
                self.send_all();
                let is_told = matches!(due, Some(Due::Report(Progress::Ending(_) | Progress::Awaiting(_))));
                if is_told { due } else { Some(Due::Report(Progress::Awaiting(false))) }
            }
            _ => due,
        }
    }
}
