//! The signals that a supervisor or standby waits for.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use penfold_sys::signal::{SignalFd, SignalSet, pass_on, queue_signal};
use rustix::process::Signal;

use crate::exec_request::EXEC_REQUEST;

/// The signal for a child that ended, stopped or continued.
pub(crate) const CHILD: i32 = Signal::CHILD.as_raw();

/// Opens a signalfd for SIGCHLD, for SIGTERM, which requests the end of the sandbox, and for requests about an exec.
///
/// # Errors
/// Those of signalfd(2).
pub(crate) fn open_signals() -> io::Result<SignalFd> {
    SignalFd::open(&SignalSet::of([CHILD, Signal::TERM.as_raw(), EXEC_REQUEST]))
}

/// Forwards each queued SIGTERM to the supervisor, with the polite signal that it carries, and each request about an
/// exec.
pub(crate) fn forward_term(signals: &SignalFd, supervisor: &OwnedFd) {
    while let Ok(Some(signalled)) = signals.take() {
        if signalled.signal == Signal::TERM.as_raw() {
            let _ = pass_on(supervisor.as_fd(), signalled.carried.unwrap_or(Signal::TERM));
        } else if signalled.signal == EXEC_REQUEST {
            let _ = queue_signal(supervisor.as_fd(), EXEC_REQUEST, signalled.value);
        }
    }
}
