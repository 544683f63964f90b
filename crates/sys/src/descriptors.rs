//! Letting go of descriptors.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fd::RawFd;
use rustix::fs::{Mode, OFlags, RawDir};

/// Closes every descriptor that this program was started with, and puts `/dev/null` in the place of the standard three.
///
/// For a forked process that must not hold what its caller gave to another: a pipe is at its end only when the last
/// copy is closed. Those that the program was started with are told by their missing close-on-exec flag: a
/// descriptor that has it does not outlive an exec, and everything opened since has it.
///
/// # Errors
/// When `/dev/null` or `/proc/self/fd` cannot be opened; what was closed stays closed.
pub fn drop_inherited() -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open("/proc/self/fd", flags, Mode::empty())?;
    let mut buffer = Vec::with_capacity(4096);
    let mut inherited: Vec<RawFd> = Vec::new();
    let mut entries = RawDir::new(&dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let number = entry.file_name().to_str().ok().and_then(|name| name.parse::<RawFd>().ok());
        inherited.extend(number.filter(|&fd| fd > 2 && !closes_on_exec(fd)));
    }
    for fd in inherited {
        // SAFETY: no value of this program owns it: it was here before the program, see above.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

/// Whether `count` more descriptors can be opened, without leaving one open.
///
/// # Errors
/// `EMFILE` when the limit of this process (`RLIMIT_NOFILE`) leaves fewer.
pub fn has_room(of: BorrowedFd<'_>, count: usize) -> io::Result<()> {
    let mut room = Vec::with_capacity(count);
    for _ in 0..count {
        room.push(rustix::io::fcntl_dupfd_cloexec(of, 0)?);
    }
    Ok(())
}

/// Closes what a copy of this process does not need of its own, where there is little room for more: every descriptor that
/// would not outlive an exec but these. Values that own a closed one are never to be used or dropped here, see [`keep_only`].
///
/// # Errors
/// When `/proc/self/fd` cannot be read; what was closed stays closed.
pub fn make_room(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if limit.is_none_or(|limit| limit >= FEW) {
        return Ok(());
    }
    close_all(kept, closes_on_exec)
}

/// Below this limit room is made.
const FEW: u64 = 128;

/// Closes every descriptor of this process but these and the standard three.
///
/// For a forked process that goes its own way and must not hold what its parent holds: locks, sockets, pipes. Values of
/// the parent that own a closed descriptor are never to be used or dropped here: such a process ends by
/// [`exit_now`](crate::fork::exit_now).
///
/// # Errors
/// When `/proc/self/fd` cannot be read; what was closed stays closed.
pub fn keep_only(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    close_all(kept, |_| true)
}

/// Closes those that are chosen, but for these and the standard three.
fn close_all(kept: &[BorrowedFd<'_>], chosen: impl Fn(RawFd) -> bool) -> io::Result<()> {
    let kept: Vec<RawFd> = kept.iter().map(AsRawFd::as_raw_fd).collect();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open("/proc/self/fd", flags, Mode::empty())?;
    let mut buffer = Vec::with_capacity(4096);
    let mut others: Vec<RawFd> = Vec::new();
    let mut entries = RawDir::new(&dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let number = entry.file_name().to_str().ok().and_then(|name| name.parse::<RawFd>().ok());
        let other = |fd: &RawFd| *fd > 2 && *fd != dir.as_raw_fd() && !kept.contains(fd) && chosen(*fd);
        others.extend(number.filter(other));
    }
    for fd in others {
        // SAFETY: no value that is used from here on owns it: the caller's promise.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

fn closes_on_exec(fd: RawFd) -> bool {
    // SAFETY: reads a flag of a number; one that is no descriptor is answered with -1, all bits set.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    flags & libc::FD_CLOEXEC != 0
}
