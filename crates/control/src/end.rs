//! Ends sandboxes: by a request, or directly if the supervisor is dead, hung or untrusted.

mod awaited;
mod forced_kill;
mod restarted;
mod stop_request;
mod worker_pool;

use std::time::Duration;

use penfold_state::intent::Intent;
use penfold_teardown::Survivor;
use rustix::process::Signal;

pub use awaited::describe_remains;
pub use restarted::end_sandboxes;

/// How to end a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndMethod {
    /// Politely at first.
    Stop {
        /// The polite signal; `None` means the sandbox's own.
        signal: Option<Signal>,
        /// The time that members have to end; `None` means the sandbox's own.
        grace: Option<Duration>,
    },
    /// At once.
    Kill,
}

/// The time limits of [`end_sandboxes()`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndLimits {
    /// For a supervisor to answer. If it does not, its sandbox is ended directly.
    pub answer: Duration,
    /// For a kill, until the survivors are reported; `None` means the sandbox's own.
    pub patience: Option<Duration>,
    /// For the supervisor's processes to exit once nothing else is left.
    pub exit: Duration,
    /// The verb that the report names; `None` means that of the method, which an older supervisor names, too.
    pub verb: Option<&'static str>,
}

/// The patience without any setting.
const USUAL_PATIENCE: Duration = Duration::from_secs(10);
/// The longest patience from a record: the command may have forged it.
const LONGEST_PATIENCE: Duration = Duration::from_mins(1);

impl EndLimits {
    /// Returns the verb that the report names.
    pub(crate) fn verb_of(&self, how: EndMethod) -> &'static str {
        self.verb.unwrap_or(match how {
            EndMethod::Stop { .. } => "stop",
            EndMethod::Kill => "kill",
        })
    }

    /// Returns the patience for a sandbox with this intent.
    pub(crate) fn patience(&self, intent: Option<&Intent>) -> Duration {
        let recorded = intent.and_then(|intent| intent.patience_ms).map(Duration::from_millis);
        let recorded = recorded.map(|patience| patience.min(LONGEST_PATIENCE));
        self.patience.or(recorded).unwrap_or(USUAL_PATIENCE)
    }
}

impl Default for EndLimits {
    fn default() -> EndLimits {
        EndLimits { answer: Duration::from_secs(1), patience: None, exit: Duration::from_secs(2), verb: None }
    }
}

/// The result of ending a sandbox.
#[derive(Debug)]
pub enum StopResult {
    /// Nothing is left: this was verified.
    Gone,
    /// Something is left.
    Left(Vec<Survivor>),
    /// The sandbox could not be ended or examined, for this reason.
    Failed(std::io::Error),
}

/// The progress of an [`end_sandboxes()`] or a [`wait_for_sandboxes`](crate::wait_for_sandboxes()).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndProgress {
    /// The number of sandboxes that have not ended yet.
    pub left: usize,
    /// The number of sandboxes that have ended, or whose supervisor ends them: they end also if the caller dies.
    pub begun: usize,
    /// The time since the call.
    pub since: Duration,
}
