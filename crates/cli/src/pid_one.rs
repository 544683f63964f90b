//! A long-running verb as pid 1 of a container.
//!
//! The kernel gives every orphan of a pid namespace to pid 1, and pid 1 must reap it. A process that starts children of its
//! own cannot reap "any child" without stealing their exit codes. So pid 1 forks: it reaps and forwards signals, its child
//! does the work.

use std::io;

use penfold_sys::child::{self, Exit, PeekResult};
use penfold_sys::fork::{ForkSide, fork};
use penfold_sys::signal::{self, SignalFd, SignalSet};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::exit_codes;
use crate::failure::{Failure, FailureKind, OrFail as _};

/// If this process is pid 1, forks, and returns in the child only once that is done; in pid 1, returns the exit code of the
/// child after its end. Elsewhere, returns `None` at once. Must be called before the first thread is started.
///
/// # Errors
/// When the fork fails.
pub(crate) fn fork_if_init() -> Result<Option<u8>, Failure> {
    if !rustix::process::getpid().is_init() {
        return Ok(None);
    }
    stand_in().or_fail(FailureKind::Other, "cannot be pid 1 of this container")
}

fn stand_in() -> io::Result<Option<u8>> {
    let all = SignalSet::of(1..=64);
    let before = signal::block_signals(&all)?;
    let signals = SignalFd::open(&all)?;
    match fork()? {
        ForkSide::Child => {
            drop(signals);
            // Ctrl-C at the container's terminal then goes to pid 1 only, and is forwarded once.
            let _ = rustix::process::setpgid(None, None);
            signal::set_mask(&before)?;
            Ok(None)
        }
        ForkSide::Parent(child) => reap_and_forward(child, &signals).map(Some),
    }
}

fn reap_and_forward(main: Pid, signals: &SignalFd) -> io::Result<u8> {
    let pidfd = pidfd_open(main, PidfdFlags::empty())?;
    loop {
        while let PeekResult::Ended(pid, exit) = child::reap_any()? {
            if pid == main {
                return Ok(match exit {
                    Exit::Code(code) => u8::try_from(code).unwrap_or(exit_codes::FAILURE),
                    Exit::Signal(signal) => {
                        u8::try_from(signal).unwrap_or(0).saturating_add(exit_codes::SIGNALLED)
                    }
                });
            }
        }
        let mut fds = [PollFd::new(signals, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, None))?;
        while let Some(signalled) = signals.take()? {
            if let Some(signal) =
                signal::signal_of_number(signalled.signal).filter(|signal| *signal != Signal::CHILD)
            {
                // A child that has ended is seen above.
                let _ = pidfd_send_signal(&pidfd, signal);
            }
        }
    }
}
