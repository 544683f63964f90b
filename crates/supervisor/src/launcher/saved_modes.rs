//! The modes of the caller's terminal, put back after a command that could not do so itself.

use std::os::fd::{AsFd, OwnedFd};

use penfold_sys::signal::{self, SignalSet};
use rustix::io::Errno;
use rustix::process::{Signal, test_kill_process_group};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

/// A terminal and its modes as they were before the command.
#[derive(Debug)]
pub(crate) struct SavedModes {
    terminal: OwnedFd,
    modes: Termios,
}

impl SavedModes {
    /// Notes the modes of a terminal.
    pub(crate) fn of(terminal: impl AsFd) -> Option<SavedModes> {
        let terminal = terminal.as_fd().try_clone_to_owned().ok()?;
        let modes = tcgetattr(&terminal).ok()?;
        Some(SavedModes { terminal, modes })
    }

    /// Puts the modes back, if the terminal is the caller's job's, or was left to a group that is gone.
    pub(crate) fn restore(&self) {
        let Ok(launcher) = tcgetpgrp(&self.terminal) else { return };
        let ours = launcher.as_raw_nonzero().get() == penfold_sys::fork::group();
        if !ours && test_kill_process_group(launcher) != Err(Errno::SRCH) {
            return;
        }
        // Of a job in the background the kernel would stop us for it.
        let Ok(mask) = signal::block(&SignalSet::of([Signal::TTOU.as_raw()])) else { return };
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.modes);
        let _ = signal::set_mask(&mask);
    }
}
