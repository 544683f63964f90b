//! What a watcher knows of one record.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use penfold_process::{ProcFs, Process};
use penfold_state::evidence::LockState;
use penfold_state::record::Registry;
use penfold_state::{Files, recovery};

use crate::holders::{self, Locks};

/// What a watcher knows of one record.
#[derive(Debug)]
pub(super) enum WatchedRecord {
    /// A supervisor holds the record; the pidfd is its.
    Guarded(OwnedFd),
    /// The record must be looked at again at this time; if nothing has changed then, after twice the delay.
    Later {
        /// The time.
        at: Instant,
        /// The delay that ends at this time.
        delay: Duration,
    },
    /// No process holds the record, and nobody else will end its sandbox.
    Lost,
    /// A process recovers the sandbox.
    Recovering,
    /// The sandbox has ended, or should go on without a supervisor.
    Settled,
}

impl WatchedRecord {
    /// The first delay for a record that cannot be judged yet.
    pub(super) const FIRST: Duration = Duration::from_millis(100);
    /// The first delay after a recovery that left something.
    pub(super) const AGAIN: Duration = Duration::from_secs(2);
    /// The longest delay.
    const LONGEST: Duration = Duration::from_mins(1);
    /// A record without an intent is no longer being made after this delay: `gc` removes it.
    const MADE: Duration = Duration::from_secs(2);

    /// Looks at a record; `delay` is the time until the next look, if one is needed.
    pub(super) fn look(registry: &Registry, name: &str, delay: Duration) -> WatchedRecord {
        let files = match registry.look(name) {
            Ok(Some(files)) => files,
            Ok(None) => return WatchedRecord::Settled,
            Err(_) => return WatchedRecord::later(delay),
        };
        // While the sandbox waits for its next life, a process holds the record.
        if files.has_ended() && files.next_life().is_none() {
            return WatchedRecord::Settled;
        }
        match files.lock() {
            LockState::Held => {
                guard(&files).map_or_else(|| WatchedRecord::later(delay), WatchedRecord::Guarded)
            }
            LockState::Unknown(_) => WatchedRecord::later(delay),
            LockState::Free => match recovery::is_lost(registry, name) {
                Ok(true) => WatchedRecord::Lost,
                Ok(false) if files.intent().is_err() && delay < WatchedRecord::MADE => {
                    WatchedRecord::later(delay)
                }
                // Another process may have locked the record since.
                Ok(false) if files.lock().may_be_held() => WatchedRecord::later(delay),
                Ok(false) => WatchedRecord::Settled,
                Err(_) => WatchedRecord::later(delay),
            },
        }
    }

    /// Tells whether a record that was settled is that of a further life now.
    pub(super) fn has_begun_anew(&self, registry: &Registry, name: &str) -> bool {
        matches!(self, WatchedRecord::Settled) && !registry.seems_ended(name)
    }

    /// A record that must be looked at again after this delay.
    pub(super) fn later(delay: Duration) -> WatchedRecord {
        WatchedRecord::Later { at: Instant::now() + delay, delay }
    }

    /// The time of the next look, if there is one.
    pub(super) fn at(&self) -> Option<Instant> {
        match self {
            WatchedRecord::Later { at, .. } => Some(*at),
            _ => None,
        }
    }

    /// The delay after a look that is due now; `None` if none is due.
    pub(super) fn due(&self, now: Instant) -> Option<Duration> {
        match self {
            WatchedRecord::Later { at, delay } if *at <= now => {
                Some((*delay * 2).min(WatchedRecord::LONGEST))
            }
            _ => None,
        }
    }
}

/// A process that holds the lock of a record.
///
/// The supervisors that the record names come first, but only if they hold the lock: the record may be forged.
fn guard(files: &Files) -> Option<OwnedFd> {
    let locks = Locks::of(files.name(), Some(files), None);
    let holds = |process: &Process| {
        matches!(locks.are_held_by(process.id().pid), Ok(true)) && matches!(process.has_exited(), Ok(false))
    };
    let named = holders::supervisors_in_record(files).into_iter().find(holds);
    let holder = named.or_else(|| locks.holders(&mut ProcFs::open().ok()?).ok()?.into_first());
    holder.map(Process::into_pidfd)
}
