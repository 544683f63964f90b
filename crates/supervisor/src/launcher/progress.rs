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
pub(super) enum DueAction {
    FreeMemory,
    Report(LauncherProgress),
}

/// The progress that a waiting person may ask about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LauncherProgress {
    /// The way in which the sandbox is being ended.
    Ending(Ending),
    /// The command handles the signal of its terminal, and continues.
    PassedOn,
    /// The sandbox is still being ended; `true` after the first time.
    Awaiting(bool),
}

impl DueAction {
    /// Returns the time without events after which the action is due.
    pub(super) fn after(self) -> Duration {
        match self {
            DueAction::FreeMemory => FREE_MEMORY_DELAY,
            DueAction::Report(LauncherProgress::Ending(_)) => PROGRESS_DELAY,
            DueAction::Report(LauncherProgress::PassedOn) => PASSED_ON_DELAY,
            DueAction::Report(LauncherProgress::Awaiting(false)) => AWAITED_DELAY,
            DueAction::Report(LauncherProgress::Awaiting(true)) => AWAITED_INTERVAL,
        }
    }

    /// Acts, and returns the action that is due next. `slow` tells whether a person reads the progress.
    fn act(self, slow: &mut impl FnMut(LauncherProgress) -> bool) -> Option<DueAction> {
        match self {
            DueAction::FreeMemory => {
                penfold_sys::memory::drop_unneeded_pages();
                None
            }
            DueAction::Report(progress) => slow(progress).then(|| progress.next()).flatten(),
        }
    }
}

impl LauncherProgress {
    /// The progress that is due next, if a person reads this one.
    pub(super) fn next(self) -> Option<DueAction> {
        match self {
            LauncherProgress::PassedOn => None,
            LauncherProgress::Ending(_) => Some(DueAction::Report(LauncherProgress::Awaiting(false))),
            LauncherProgress::Awaiting(_) => Some(DueAction::Report(LauncherProgress::Awaiting(true))),
        }
    }
}

impl Launcher {
    /// Acts after a time without events, and returns the action that is due next.
    pub(super) fn act(
        &mut self,
        due: Option<DueAction>,
        slow: &mut impl FnMut(LauncherProgress) -> bool,
    ) -> Option<DueAction> {
        self.sweep_orphans();
        due.and_then(|action| action.act(slow))
    }

    /// Handles an answer about the end; returns the action that is due some time after the answer. `due` is the one until now.
    pub(super) fn progress_after(&mut self, answer: &Answer, due: Option<DueAction>) -> Option<DueAction> {
        match answer {
            Answer::Ending(ending) => Some(DueAction::Report(LauncherProgress::Ending(*ending))),
            // Only once: each key press would otherwise write over the command's prompt.
            Answer::PassedOn if !std::mem::replace(&mut self.passed_on_shown, true) => {
                Some(DueAction::Report(LauncherProgress::PassedOn))
            }
            Answer::LeaderEnded => {
                self.send_all();
                let is_reported = matches!(
                    due,
                    Some(DueAction::Report(LauncherProgress::Ending(_) | LauncherProgress::Awaiting(_)))
                );
                if is_reported { due } else { Some(DueAction::Report(LauncherProgress::Awaiting(false))) }
            }
            _ => due,
        }
    }
}
