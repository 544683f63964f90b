//! Closes descriptors in bulk.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fd::RawFd;
use rustix::fs::{Mode, OFlags, RawDir};

/// Closes every descriptor that this program was started with, and opens `/dev/null` as the three standard streams.
///
/// A forked process must not hold its caller's descriptors: a reader of a pipe sees EOF only when the last copy is
/// closed. The descriptors that the program was started with lack the close-on-exec flag: descriptors with the flag do
/// not outlive an exec. Every descriptor opened since then has the flag.
///
/// # Errors
/// When `/dev/null` or `/proc/self/fd` cannot be opened; descriptors closed by then stay closed.
pub fn drop_inherited() -> io::Result<()> {
    drop_streams()?;
    // No value of this program owns them: they were open before the program started.
    close_all(&[], |fd| !closes_on_exec(fd))
}

/// Opens `/dev/null` as the three standard streams.
///
/// # Errors
/// When `/dev/null` cannot be opened; the streams stay open then.
pub fn drop_streams() -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Returns the `count` descriptors from number 3 on that a service manager has opened for this program, with the
/// close-on-exec flag. Only the first call in a process can succeed.
///
/// # Errors
/// `EBADF` when one of them is not open or was opened by this program; the others stay open then.
pub fn take_inherited(count: usize) -> io::Result<Vec<OwnedFd>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let bad = || io::Error::from_raw_os_error(libc::EBADF);
    let end = RawFd::try_from(count).ok().and_then(|count| count.checked_add(3)).ok_or_else(bad)?;
    // Each descriptor that this program opens has the close-on-exec flag; see `drop_inherited`.
    if TAKEN.swap(true, Ordering::Relaxed) || (3..end).any(|fd| !is_open(fd) || closes_on_exec(fd)) {
        return Err(bad());
    }
    (3..end)
        .map(|fd| {
            // SAFETY: the descriptor is open, no value of this program owns it, and only the first call gets here.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
            Ok(fd)
        })
        .collect()
}

/// Returns the descriptor `number` that the caller has opened for this program, with the close-on-exec flag. Only the first
/// call in a process can succeed.
///
/// # Errors
/// `EBADF` when the descriptor is not open or was opened by this program.
pub fn take_one(number: RawFd) -> io::Result<OwnedFd> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    // Each descriptor that this program opens has the close-on-exec flag; see `drop_inherited`.
    if TAKEN.swap(true, Ordering::Relaxed) || number < 3 || !is_open(number) || closes_on_exec(number) {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the descriptor is open, no value of this program owns it, and only the first call gets here.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    Ok(fd)
}

/// Checks that `count` more descriptors can be opened, without leaving one open.
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

/// Makes the descriptor table of this process large enough for `count` descriptors, for a call that is about to open many. A failure
/// changes nothing.
///
/// A table grows by doubling. In a process with threads each growth waits until all processors have left what they do
/// (`synchronize_rcu` in `expand_fdtable`, fs/file.c), for 10 to 20 ms.
pub fn reserve(of: BorrowedFd<'_>, count: usize) {
    let least = RawFd::try_from(count).unwrap_or(RawFd::MAX);
    drop(rustix::io::fcntl_dupfd_cloexec(of, least));
}

/// Closes descriptors that a fork does not need, if the limit leaves little room for more.
///
/// The function closes every close-on-exec descriptor but `kept`. Values that own a closed descriptor must never be
/// used or dropped here, see [`keep_only`].
///
/// # Errors
/// When `/proc/self/fd` cannot be read; descriptors closed by then stay closed.
pub fn make_room(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if limit.is_none_or(|limit| limit >= FEW) {
        return Ok(());
    }
    close_all(kept, closes_on_exec)
}

/// [`make_room`] closes descriptors only below this limit.
const FEW: u64 = 128;

/// Closes every descriptor of this process but `kept` and the three standard streams.
///
/// A forked process must not hold locks, sockets and pipes of its parent. Values of the parent that own a closed
/// descriptor must never be used or dropped here, so the process must end by [`exit_now`](crate::fork::exit_now).
///
/// # Errors
/// When the kernel refuses `close_range(2)` (Linux before 5.9) and `/proc/self/fd` cannot be read; descriptors closed by
/// then stay closed.
pub fn keep_only(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    // A list of `/proc/self/fd` leaves an entry for each descriptor in the kernel's cache, and whoever reaps this process
    // pays for their removal.
    close_gaps(kept).or_else(|_| close_all(kept, |_| true))
}

/// Closes the ranges of numbers between `kept`, from number 3 on.
fn close_gaps(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<u32> =
        kept.iter().map(|fd| fd.as_raw_fd().cast_unsigned()).filter(|fd| *fd > 2).collect();
    kept.sort_unstable();
    let mut first = 3;
    for fd in kept {
        if first < fd {
            close_range(first, fd - 1)?;
        }
        first = fd + 1;
    }
    close_range(first, u32::MAX)
}

/// Calls `close_range(2)`.
fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: the caller of `keep_only` promises that no value used from here on owns one of the descriptors.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Closes the chosen descriptors, but never `kept` and the three standard streams.
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
        // SAFETY: the caller promises that no value used from here on owns the descriptor.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

fn is_open(fd: RawFd) -> bool {
    // SAFETY: the call reads a flag of a number; for a number that is no descriptor it returns -1.
    unsafe { libc::fcntl(fd, libc::F_GETFD) != -1 }
}

fn closes_on_exec(fd: RawFd) -> bool {
    // SAFETY: the call reads a flag of a number; for a number that is no descriptor it returns -1, all bits set.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    flags & libc::FD_CLOEXEC != 0
}
