//! The signals that a process of ours waits for while it looks after a sandbox.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use penfold_sys::signal::{SignalFd, SignalSet, pass_on};
use rustix::process::Signal;

/// A child has ended, was stopped, or goes on.
pub(crate) const CHILD: i32 = Signal::CHILD.as_raw();

/// Opens a descriptor for the changes of children, and for the wish that the sandbox ends.
///
/// # Errors
/// Those of signalfd(2).
pub(crate) fn open() -> io::Result<SignalFd> {
    SignalFd::open(&SignalSet::of([CHILD, Signal::TERM.as_raw()]))
}

/// Passes wishes to end on to who looks after the command.
pub(crate) fn pass_on_wishes(signals: &SignalFd, supervisor: &OwnedFd) {
    while let Ok(Some(signalled)) = signals.take() {
        if signalled.signal == Signal::TERM.as_raw() {
            let _ = pass_on(supervisor.as_fd(), signalled.carried.unwrap_or(Signal::TERM));
        }
    }
}
