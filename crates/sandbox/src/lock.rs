//! Locks of what this process has just made, by which others see that it is no leak.

use std::io;
use std::os::fd::AsFd;

use rustix::event::Timespec;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// How often it is tried. Who only looks whether a lock is held holds it for microseconds, or until it runs again.
pub(crate) const TRIES: u32 = 1000;
const AT_ONCE: u32 = 10;
const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Locks a directory that this process has just made, for as long as `dir`, or the copy of it in a forked process, lives.
///
/// # Errors
/// Those of flock(2).
pub fn hold_new(dir: impl AsFd) -> io::Result<()> {
    let mut tries = 0;
    loop {
        match rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if tries < TRIES => pause(tries),
            other => return Ok(other?),
        }
        tries += 1;
    }
}

/// Lets those go on who may be looking.
pub(crate) fn pause(tries: u32) {
    if tries < AT_ONCE {
        rustix::thread::sched_yield();
    } else {
        let _ = rustix::thread::nanosleep(&MOMENT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looks_whether_it_is_held_keeps_nobody_from_holding_it() {
        let base = tempfile::tempdir().unwrap();
        let open = || std::fs::File::open(base.path()).unwrap();
        for _ in 0..20 {
            let (looker, own) = (open(), open());
            rustix::fs::flock(&looker, FlockOperation::NonBlockingLockExclusive).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    pause(AT_ONCE);
                    drop(looker);
                });
                hold_new(&own).unwrap();
            });
            rustix::fs::flock(open(), FlockOperation::NonBlockingLockExclusive).unwrap_err();
        }
    }
}
