//! Restores the modes of the caller's terminal after a command that could not do so itself.

use std::os::fd::{AsFd, OwnedFd};

use penfold_sys::signal::{self, SignalSet};
use rustix::io::Errno;
use rustix::process::{Signal, test_kill_process_group};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

/// A terminal and its modes before the command.
#[derive(Debug)]
pub(crate) struct SavedModes {
    terminal: OwnedFd,
    modes: Termios,
}

impl SavedModes {
    /// Saves the modes of a terminal.
    pub(crate) fn of(terminal: impl AsFd) -> Option<SavedModes> {
        let terminal = terminal.as_fd().try_clone_to_owned().ok()?;
        let modes = tcgetattr(&terminal).ok()?;
        Some(SavedModes { terminal, modes })
    }

    /// Restores the modes if the caller's job is in the foreground, or if the foreground group no longer exists.
    pub(crate) fn restore(&self) {
        let Ok(foreground) = tcgetpgrp(&self.terminal) else { return };
        let ours = foreground.as_raw_nonzero().get() == penfold_sys::fork::group();
        if !ours && test_kill_process_group(foreground) != Err(Errno::SRCH) {
            return;
        }
        // In the background, SIGTTOU would stop this process at tcsetattr(3).
        let Ok(mask) = signal::block(&SignalSet::of([Signal::TTOU.as_raw()])) else { return };
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.modes);
        let _ = signal::set_mask(&mask);
    }
}
