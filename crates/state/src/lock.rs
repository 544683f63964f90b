//! Locks that show that a supervisor lives. A reader that probes a lock holds it itself for that moment.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::event::Timespec;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::descriptors::lacks_descriptors;

/// The most tries to take a lock. A reader that probes releases it after microseconds, or when it is scheduled again.
pub(crate) const TRIES: u32 = 1000;
/// The number of tries while another process holds the lock exclusively. That process may be about to remove the file.
const FEW: u32 = 40;
const AT_ONCE: u32 = 10;
const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Locks a directory that this process has just made.
///
/// The lock is held while `dir`, or the copy of it in a forked process, lives.
///
/// # Errors
/// Those of flock(2).
pub fn hold_new(dir: impl AsFd) -> io::Result<()> {
    let mut tries = 0;
    loop {
        match rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if tries < TRIES => pause_for_lock(tries),
            other => return Ok(other?),
        }
        tries += 1;
    }
}

/// Locks a file; false if another process holds the lock permanently.
///
/// # Errors
/// Those of flock(2).
pub(crate) fn hold_lock(file: impl AsFd) -> io::Result<bool> {
    for tries in 0..TRIES {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {}
            other => return Ok(other.map(|()| true)?),
        }
        // Readers that probe the lock share it.
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => rustix::fs::flock(&file, FlockOperation::Unlock)?,
            Err(Errno::WOULDBLOCK) if tries < FEW => {}
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
        pause_for_lock(tries);
    }
    Ok(false)
}

/// Opens a directory without following links.
///
/// # Errors
/// Those of openat(2).
pub fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

/// Tells whether no process holds the lock of a directory. A directory that cannot be opened counts as locked.
pub fn is_directory_free(path: &Path) -> bool {
    open_directory(path)
        .is_ok_and(|dir| rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok())
}

/// Tells whether an exclusive flock(2) was taken through this descriptor of a process: `/proc/<pid>/fdinfo`, proc(5).
///
/// # Errors
/// When there is no descriptor to look. What cannot be read for another reason holds none.
pub fn is_held_through(pid: i32, fd: &OsStr) -> io::Result<bool> {
    let text = match std::fs::read_to_string(Path::new(&format!("/proc/{pid}/fdinfo")).join(fd)) {
        Err(error) if lacks_descriptors(&error) => return Err(error),
        text => text.unwrap_or_default(),
    };
    Ok(text.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some("lock:")
            && words.clone().any(|word| word == "FLOCK")
            && words.any(|word| word == "WRITE")
    }))
}

/// Lets other processes run that may be probing the lock.
pub(crate) fn pause_for_lock(tries: u32) {
    if tries < AT_ONCE {
        rustix::thread::sched_yield();
    } else {
        let _ = rustix::thread::nanosleep(&MOMENT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 5.3
    #[test]
    fn who_looks_whether_it_is_held_keeps_nobody_from_holding_it() {
        let base = tempfile::tempdir().unwrap();
        let open = || std::fs::File::open(base.path()).unwrap();
        for _ in 0..20 {
            let (looker, own) = (open(), open());
            rustix::fs::flock(&looker, FlockOperation::NonBlockingLockExclusive).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    pause_for_lock(AT_ONCE);
                    drop(looker);
                });
                hold_new(&own).unwrap();
            });
            rustix::fs::flock(open(), FlockOperation::NonBlockingLockExclusive).unwrap_err();
        }
    }

    /// spec: 5.3
    #[test]
    fn many_lookers_are_no_holder_and_a_holder_is_one() {
        let base = tempfile::tempdir().unwrap();
        let open = || std::fs::File::open(base.path()).unwrap();
        let (lookers, own) = ([open(), open()], open());
        for looker in &lookers {
            rustix::fs::flock(looker, FlockOperation::NonBlockingLockShared).unwrap();
        }
        std::thread::scope(|scope| {
            scope.spawn(move || {
                (0..2 * FEW).for_each(|_| pause_for_lock(AT_ONCE));
                drop(lookers);
            });
            assert!(hold_lock(&own).unwrap());
        });
        assert!(!hold_lock(open()).unwrap());
    }
}
