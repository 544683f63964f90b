//! Who leads the sandbox, as the supervisor notes it for the process that takes its place: a number in an eventfd(2) of both.

use std::os::fd::OwnedFd;

use penfold_process::Pid;
use rustix::event::{EventfdFlags, eventfd};

/// The mark of a leader that runs its program.
const RUNS: u64 = 1 << 32;
/// The mark of a leader of whose end the supervisor tells.
const EXITED: u64 = 1 << 33;

/// The leader's pid and two marks.
pub(crate) struct LeaderCell(OwnedFd);

impl LeaderCell {
    /// Makes one with nothing in it.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn create() -> Result<LeaderCell, String> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        eventfd(0, flags).map(LeaderCell).map_err(|error| format!("cannot make an eventfd: {error}"))
    }

    /// Writes down who leads; the last one written counts.
    pub(crate) fn note(&self, pid: Pid) {
        self.write(pid, 0);
    }

    /// Writes down that the leader runs its program.
    pub(crate) fn note_running(&self, pid: Pid) {
        self.write(pid, RUNS);
    }

    /// Writes down that the supervisor tells how the command ended: who else does so lies.
    pub(crate) fn note_end_told(&self) {
        if let Some((pid, _)) = self.noted() {
            self.write(pid, RUNS | EXITED);
        }
    }

    /// Whether the supervisor has told how the command ended.
    pub(crate) fn is_end_told(&self) -> bool {
        self.read().is_some_and(|number| number & EXITED != 0)
    }

    /// The leader, if the supervisor came far enough to write it down, and whether it ran its program.
    pub(crate) fn noted(&self) -> Option<(Pid, bool)> {
        let number = self.read()?;
        let pid = Pid::from_raw(i32::try_from(number & !(RUNS | EXITED)).ok()?)?;
        Some((pid, number & RUNS != 0))
    }

    fn write(&self, pid: Pid, mark: u64) {
        let mut before = [0_u8; 8];
        let _ = rustix::io::read(&self.0, &mut before);
        let number = u64::try_from(pid.as_raw_nonzero().get()).unwrap_or(0) | mark;
        let _ = rustix::io::write(&self.0, &number.to_ne_bytes());
    }

    fn read(&self) -> Option<u64> {
        let mut number = [0_u8; 8];
        rustix::io::read(&self.0, &mut number).ok()?;
        // Reading it has emptied it.
        let _ = rustix::io::write(&self.0, &number);
        Some(u64::from_ne_bytes(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_last_is_read_as_often_as_one_looks() {
        let cell = LeaderCell::create().unwrap();
        let (first, last) = (Pid::from_raw(7).unwrap(), Pid::from_raw(i32::MAX).unwrap());
        assert_eq!((cell.noted(), cell.is_end_told()), (None, false));
        cell.note(first);
        cell.note(last);
        assert_eq!((cell.noted(), cell.is_end_told()), (Some((last, false)), false));
        cell.note_running(last);
        assert_eq!((cell.noted(), cell.is_end_told()), (Some((last, true)), false));
        cell.note_end_told();
        assert_eq!((cell.noted(), cell.is_end_told()), (Some((last, true)), true));
    }
}
