//! Stores the leader's pid in an eventfd(2) shared by supervisor and standby, for a takeover.

use std::os::fd::OwnedFd;

use penfold_process::Pid;
use rustix::event::{EventfdFlags, eventfd};

/// The bit: the leader executes its program.
const RUNNING_BIT: u64 = 1 << 32;
/// The bit: `exit.json` was written by the supervisor.
const EXIT_WRITTEN_BIT: u64 = 1 << 33;

/// The leader's pid and two bits, in an eventfd(2).
pub(crate) struct LeaderCell(OwnedFd);

impl LeaderCell {
    /// Creates an empty cell.
    ///
    /// # Errors
    /// The reason, as a sentence.
    pub(crate) fn create() -> Result<LeaderCell, String> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        eventfd(0, flags).map(LeaderCell).map_err(|error| format!("cannot make an eventfd: {error}"))
    }

    /// Stores the leader's pid; a later one replaces it.
    pub(crate) fn store(&self, pid: Pid) {
        self.write(pid, 0);
    }

    /// Sets the bit of a leader that executes its program.
    pub(crate) fn store_running(&self, pid: Pid) {
        self.write(pid, RUNNING_BIT);
    }

    /// Sets the bit for `exit.json`: a file of any other process is forged.
    pub(crate) fn store_exit_written(&self) {
        if let Some((pid, _)) = self.load() {
            self.write(pid, RUNNING_BIT | EXIT_WRITTEN_BIT);
        }
    }

    /// Tells whether the supervisor has written `exit.json`.
    pub(crate) fn is_exit_written(&self) -> bool {
        self.read().is_some_and(|number| number & EXIT_WRITTEN_BIT != 0)
    }

    /// Returns the leader's pid, if the supervisor stored one, and whether the leader ran its program.
    pub(crate) fn load(&self) -> Option<(Pid, bool)> {
        let number = self.read()?;
        let pid = Pid::from_raw(i32::try_from(number & !(RUNNING_BIT | EXIT_WRITTEN_BIT)).ok()?)?;
        Some((pid, number & RUNNING_BIT != 0))
    }

    fn write(&self, pid: Pid, bits: u64) {
        let mut before = [0_u8; 8];
        let _ = rustix::io::read(&self.0, &mut before);
        let number = u64::try_from(pid.as_raw_nonzero().get()).unwrap_or(0) | bits;
        let _ = rustix::io::write(&self.0, &number.to_ne_bytes());
    }

    fn read(&self) -> Option<u64> {
        let mut number = [0_u8; 8];
        rustix::io::read(&self.0, &mut number).ok()?;
        // read(2) resets an eventfd to zero, so the value is written back.
        let _ = rustix::io::write(&self.0, &number);
        Some(u64::from_ne_bytes(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_stored_value_can_be_loaded_repeatedly() {
        let cell = LeaderCell::create().unwrap();
        let (first, last) = (Pid::from_raw(7).unwrap(), Pid::from_raw(i32::MAX).unwrap());
        assert_eq!((cell.load(), cell.is_exit_written()), (None, false));
        cell.store(first);
        cell.store(last);
        assert_eq!((cell.load(), cell.is_exit_written()), (Some((last, false)), false));
        cell.store_running(last);
        assert_eq!((cell.load(), cell.is_exit_written()), (Some((last, true)), false));
        cell.store_exit_written();
        assert_eq!((cell.load(), cell.is_exit_written()), (Some((last, true)), true));
    }
}
