//! Stores the end of an exec in an eventfd(2) shared by exec supervisor and supervisor.
//!
//! No member can write to the cell, so the supervisor knows whether a report is forged, and how a command ended whose
//! exec supervisor could not write to a full disk or was killed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use penfold_teardown::Cause;
use rustix::event::{EventfdFlags, eventfd};

use crate::outcome::ExitStatus;

/// The bit: the leader has ended.
const ENDED_BIT: u64 = 1 << 48;
/// The bit: the exit of the leader is known.
const EXIT_BIT: u64 = 1 << 49;
/// The bit: a signal ended the leader.
const SIGNAL_BIT: u64 = 1 << 50;
/// The bit: nothing is left of the exec.
const VERIFIED_BIT: u64 = 1 << 51;
const CAUSE_SHIFT: u32 = 32;

/// All causes; the cell holds an index, which another version of penfold may read.
const CAUSES: [Cause; 14] = [
    Cause::Exit,
    Cause::Signal,
    Cause::StartFailed,
    Cause::Timeout,
    Cause::Ttl,
    Cause::Idle,
    Cause::Oom,
    Cause::Stop,
    Cause::Kill,
    Cause::Owner,
    Cause::Supervisor,
    Cause::Lost,
    Cause::Memory,
    Cause::Stdin,
];

/// The end of an exec, as far as its supervisor has seen it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SeenEnd {
    /// How the leader ended; `None` if unknown.
    pub(crate) exit: Option<ExitStatus>,
    /// Why the exec ended.
    pub(crate) cause: Cause,
    /// Nothing is left of the exec.
    pub(crate) verified: bool,
}

/// The end of an exec, in an eventfd(2).
#[derive(Debug)]
pub(crate) struct EndCell(OwnedFd);

impl EndCell {
    /// Creates an empty cell.
    pub(crate) fn create() -> io::Result<EndCell> {
        Ok(EndCell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Returns another handle to the cell.
    pub(crate) fn try_clone(&self) -> io::Result<EndCell> {
        self.0.try_clone().map(EndCell)
    }

    /// Stores the end; a later one replaces it.
    pub(crate) fn store(&self, end: SeenEnd) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
        let _ = rustix::io::write(&self.0, &encode(end).to_ne_bytes());
    }

    /// Loads the end, if the exec supervisor has stored one.
    pub(crate) fn load(&self) -> Option<SeenEnd> {
        let mut number = [0_u8; 8];
        rustix::io::read(&self.0, &mut number).ok()?;
        // read(2) resets an eventfd to zero, so the value is written back.
        let _ = rustix::io::write(&self.0, &number);
        decode(u64::from_ne_bytes(number))
    }
}

impl AsFd for EndCell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn encode(SeenEnd { exit, cause, verified }: SeenEnd) -> u64 {
    let number = |number: i32| u64::from(number.cast_unsigned());
    let exit = match exit {
        None => 0,
        Some(ExitStatus::Code(code)) => EXIT_BIT | number(code),
        Some(ExitStatus::Signal(signal)) => EXIT_BIT | SIGNAL_BIT | number(signal),
    };
    let cause = CAUSES.iter().position(|known| *known == cause).unwrap_or(0);
    let cause = u64::try_from(cause).unwrap_or(0) << CAUSE_SHIFT;
    ENDED_BIT | exit | cause | if verified { VERIFIED_BIT } else { 0 }
}

fn decode(number: u64) -> Option<SeenEnd> {
    let has = |bit| number & bit != 0;
    if !has(ENDED_BIT) {
        return None;
    }
    let value = u32::try_from(number & u64::from(u32::MAX)).ok()?.cast_signed();
    let exit = has(EXIT_BIT)
        .then(|| if has(SIGNAL_BIT) { ExitStatus::Signal(value) } else { ExitStatus::Code(value) });
    let cause = *CAUSES.get(usize::try_from((number >> CAUSE_SHIFT) & 0xff).ok()?)?;
    Some(SeenEnd { exit, cause, verified: has(VERIFIED_BIT) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_stored_end_can_be_loaded_repeatedly() {
        let cell = EndCell::create().unwrap();
        assert_eq!(cell.load(), None);
        let exits =
            [None, Some(ExitStatus::Code(0)), Some(ExitStatus::Code(255)), Some(ExitStatus::Signal(9))];
        for exit in exits {
            for cause in CAUSES {
                for verified in [false, true] {
                    let end = SeenEnd { exit, cause, verified };
                    cell.store(end);
                    assert_eq!((cell.load(), cell.load()), (Some(end), Some(end)));
                }
            }
        }
    }
}
