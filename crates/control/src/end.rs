//! Ends sandboxes: by asking, and over the head of a supervisor that is gone, does not answer or lies.

mod forced_kill;
pub(crate) mod holders;
mod stop_request;

use std::time::Duration;

use penfold_state::record::Intent;
use penfold_teardown::Survivor;
use rustix::event::Timespec;
use rustix::process::Signal;

pub use stop_request::end;

/// How a sandbox is to be ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Politely at first.
    Stop {
        /// The polite signal; nothing means what the sandbox was made with.
        signal: Option<Signal>,
        /// How long members may take to end; nothing means what the sandbox was made with.
        grace: Option<Duration>,
    },
    /// At once.
    Kill,
}

/// For how long things are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// For a supervisor to answer. One that takes longer is passed over, and its sandbox ended all the same.
    pub answer: Duration,
    /// For a kill to be over, until what is left is reported; nothing means what the sandbox was made with.
    pub patience: Option<Duration>,
    /// For the supervisors to be gone once nothing else is left.
    pub farewell: Duration,
}

/// How long a kill may take where nobody says.
const USUAL_PATIENCE: Duration = Duration::from_secs(10);
/// No longer than this where only a record says so: the command may have forged it.
const LONGEST_PATIENCE: Duration = Duration::from_mins(1);

impl Limits {
    /// How long the kill of a sandbox may take that was made with this.
    pub(crate) fn patience(&self, intent: Option<&Intent>) -> Duration {
        let recorded = intent.and_then(|intent| intent.patience_ms).map(Duration::from_millis);
        let recorded = recorded.map(|patience| patience.min(LONGEST_PATIENCE));
        self.patience.or(recorded).unwrap_or(USUAL_PATIENCE)
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { answer: Duration::from_secs(1), patience: None, farewell: Duration::from_secs(2) }
    }
}

/// What became of a sandbox that was to be ended.
#[derive(Debug)]
pub enum Fate {
    /// It was seen that nothing is left.
    Gone,
    /// Something is left.
    Left(Vec<Survivor>),
    /// It could not be ended, or not be looked at; why.
    Failed(std::io::Error),
}

/// How far an [`end()`] or a [`wait`](crate::wait()) has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// How many sandboxes are not over yet.
    pub left: usize,
    /// For how long it has been going on.
    pub since: Duration,
}

/// A duration as poll(2) takes it.
pub(crate) fn timespec(duration: Duration) -> Option<Timespec> {
    Timespec::try_from(duration).ok()
}

/// Waits without an event to wait for: nobody tells when a lock is let go.
pub(crate) fn pause(duration: Duration) {
    let _ = rustix::event::poll(&mut [], timespec(duration).as_ref());
}
