//! [`Caller`]: how the process that starts a sandbox takes part in it, and [`Explainer`]: what it hears meanwhile.

use std::path::PathBuf;

use penfold_control::{EndProgress, SandboxRef};
use penfold_request::{OwnerAction, SandboxSpec, StartRequest};
use penfold_state::{Id, StdinClose};

/// What the caller wants beside the sandbox itself.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "flags of `penfold run`")]
pub struct Caller {
    /// Whether the sandbox runs in the background.
    pub detach: bool,
    /// Whether the caller asked for standard input.
    pub interactive: bool,
    /// Whether a living sandbox with the name is stopped first.
    pub replace: bool,
    /// Whether the sandbox is outside of the one around the caller.
    pub outside: bool,
    /// Whether the first interrupt stops the sandbox.
    pub stop_on_interrupt: bool,
    /// What happens when the owner dies; default: kill, and keep for a detached sandbox.
    pub on_owner_exit: Option<OwnerAction>,
    /// The process that must be the parent of the caller's.
    pub owner: Option<i32>,
    /// What happens when standard input hangs up.
    pub on_stdin_close: Option<StdinClose>,
    /// The file for the report; `-` is standard output.
    pub report: Option<PathBuf>,
    /// The inherited descriptor that gets the start and the report.
    pub status_fd: Option<i32>,
    /// How the caller chooses its exit code.
    pub codes: Codes,
    /// The id, if it is that of a former life.
    pub id: Option<Id>,
}

/// How the caller chooses its exit code.
#[derive(Clone, Copy, Debug, Default)]
pub struct Codes {
    /// `--preserve-status`.
    pub preserve: bool,
    /// `--fail-on-leak`.
    pub fail_on_leak: bool,
}

impl Caller {
    /// Splits the request of a program that starts a detached sandbox.
    #[must_use]
    pub fn of(request: StartRequest) -> (SandboxSpec, Caller) {
        let StartRequest { spec, on_owner_exit, owner, report } = request;
        (spec, Caller { detach: true, on_owner_exit, owner, report, ..Caller::default() })
    }
}

/// What a person should know of a sandbox that starts all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// Something may end the sandbox unexpectedly.
    UnexpectedEnd {
        /// The id of the sandbox.
        id: String,
        /// What may end it, and what helps.
        reason: String,
    },
    /// The sandbox is ready, and its record does not say so.
    ReadyNotNoted {
        /// The id of the sandbox.
        id: String,
        /// The error of the record.
        error: String,
    },
}

/// Hears what a launch says while it goes on. The command line writes it to standard error.
pub trait Explainer {
    /// Hears a warning.
    fn warn(&mut self, warning: &Warning);

    /// Returns what hears of the end of the sandboxes whose name the new one gets.
    fn replacement<'a>(&'a mut self, targets: &'a [SandboxRef]) -> Box<dyn FnMut(EndProgress) + 'a>;
}
