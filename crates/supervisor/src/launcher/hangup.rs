//! The hang-up of the caller's terminal, without SIGHUP: `su - USER` and other session leaders keep the signal to themselves.

use penfold_sys::signal;
use rustix::process::Signal;

use super::Launcher;
use crate::wire::Request;

/// Tells whether a hang-up of the terminal concerns this process. Below nohup(1) it does not.
pub(crate) fn watches_hangup() -> bool {
    !signal::is_ignored(Signal::HUP.as_raw())
}

impl Launcher {
    /// Handles the hang-up of the terminal as the death of the owner, once: a terminal that has hung up stays ready.
    pub(super) fn terminal_hung_up(&mut self) {
        self.settings.watches_hangup = false;
        self.pending.push_back(Request::OwnerGone);
    }
}
