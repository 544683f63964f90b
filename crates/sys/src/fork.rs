//! `fork`, for single-threaded processes.

use std::io;

use rustix::process::Pid;

/// The process in which a [`fork`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkSide {
    /// The new process.
    Child,
    /// The caller. The caller must reap the child.
    Parent(Pid),
}

/// `fork(2)`—Makes a copy of this process.
///
/// The copy of a single-threaded process may run any code: no other thread can have held a lock at the moment of the
/// copy.
///
/// # Errors
/// `EDEADLK` when the process has more than one thread, else those of [fork(2)]. Nothing was created.
///
/// [fork(2)]: https://man7.org/linux/man-pages/man2/fork.2.html
pub fn fork() -> io::Result<ForkSide> {
    if !single_threaded()? {
        return Err(io::Error::from_raw_os_error(libc::EDEADLK));
    }
    // SAFETY: the process has one thread, so the child inherits no lock that another thread holds.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(ForkSide::Child),
        pid => Ok(ForkSide::Parent(Pid::from_raw(pid).ok_or_else(io::Error::last_os_error)?)),
    }
}

/// Tells whether this thread is the only thread of its process.
///
/// The link count of `/proc/self/task` is the number of threads plus two (`proc_task_getattr` in fs/proc/base.c). If
/// /proc is missing, the result is an error, never a guess.
pub(crate) fn single_threaded() -> io::Result<bool> {
    let stat = rustix::fs::stat("/proc/self/task").map_err(|errno| {
        io::Error::new(
            io::Error::from(errno).kind(),
            format!("cannot count the own threads in /proc: {errno}"),
        )
    })?;
    Ok(stat.st_nlink == 3)
}

/// `getsid(0)`—Returns the session of this process, or 0 if the session's leader is outside this pid namespace.
pub fn own_session() -> i32 {
    // SAFETY: takes no pointers.
    unsafe { libc::getsid(0) }
}

/// `getsid(2)`—Returns the session of another process, or 0 if the session's leader is outside this pid namespace.
/// `None` if that process is gone.
pub fn session_of(pid: Pid) -> Option<i32> {
    // SAFETY: takes no pointers.
    let session = unsafe { libc::getsid(pid.as_raw_nonzero().get()) };
    (session >= 0).then_some(session)
}

/// `getpgrp()`—Returns the process group of this process, or 0 if the group's leader is outside this pid namespace.
pub fn own_group() -> i32 {
    // SAFETY: takes no pointers.
    unsafe { libc::getpgrp() }
}

/// `getpgid(2)`—Returns the process group of another process, or 0 if the group's leader is outside this pid namespace.
/// `None` if that process is gone.
pub fn group_of(pid: i32) -> Option<i32> {
    // SAFETY: takes no pointers.
    let group = unsafe { libc::getpgid(pid) };
    (group >= 0).then_some(group)
}

/// `_exit(2)`—Ends this process at once, without running the exit handlers that it inherited at the fork.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: takes no pointers and does not return.
    unsafe { libc::_exit(code) }
}
