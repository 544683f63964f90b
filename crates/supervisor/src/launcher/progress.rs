//! What a person who waits for the launcher may wonder about, and when.

use std::time::Duration;

use super::Launcher;
use crate::wire::{Answer, Ending};

/// How long a person waits without wondering.
const PROGRESS_DELAY: Duration = Duration::from_millis(300);
/// How long a command may take to clean up after Ctrl-C before a person wonders.
const CLEANS_UP: Duration = Duration::from_secs(2);
/// How long a command must run until this process makes itself small. Most are over by then, and spared the work.
const SETTLE: Duration = Duration::from_millis(5);
/// What the launcher does when nothing has happened for a while.
#[derive(Debug, Clone, Copy)]
pub(super) enum Due {
    Settle,
    Tell(Progress),
}

/// What a person who waits may wonder about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// How the sandbox is being ended.
    Ending(Ending),
    /// The command handles what its terminal sent, and goes on.
    PassedOn,
}

impl Due {
    /// How long nothing must have happened.
    pub(super) fn after(self) -> Duration {
        match self {
            Due::Settle => SETTLE,
            Due::Tell(Progress::Ending(_)) => PROGRESS_DELAY,
            Due::Tell(Progress::PassedOn) => CLEANS_UP,
        }
    }
}

impl Launcher {
    /// What a person will wonder about after this answer.
    pub(super) fn wonder(&mut self, answer: &Answer) -> Option<Due> {
        match answer {
            Answer::Ending(ending) => Some(Due::Tell(Progress::Ending(*ending))),
            // Once: a prompt is not written over at each key.
            Answer::PassedOn if !std::mem::replace(&mut self.explained, true) => {
                Some(Due::Tell(Progress::PassedOn))
            }
            _ => None,
        }
    }
}
