//! `fork`, for processes of one thread.

use std::io;

use rustix::process::Pid;

/// Which side of a [`fork`] is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forked {
    /// The new process.
    Child,
    /// The caller; the child is not reaped for it.
    Parent(Pid),
}

/// `fork(2)`: makes a copy of this process.
///
/// In a process of one thread the copy may go on as any program may: no other thread can have held a lock
/// at the moment of the copy.
///
/// # Errors
/// `EDEADLK` when the process has more than one thread, else those of [fork(2)]. Nothing was created.
///
/// [fork(2)]: https://man7.org/linux/man-pages/man2/fork.2.html
pub fn fork() -> io::Result<Forked> {
    if !single_threaded()? {
        return Err(io::Error::from_raw_os_error(libc::EDEADLK));
    }
    // SAFETY: there is one thread, so the child inherits no lock that another thread holds.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(Pid::from_raw(pid).ok_or_else(io::Error::last_os_error)?)),
    }
}

/// Whether this thread is the only one of its process.
///
/// The link count of `/proc/self/task` is two more than the number of threads (`proc_task_getattr` in
/// fs/proc/base.c). Where /proc is missing the answer is an error, never a guess.
pub(crate) fn single_threaded() -> io::Result<bool> {
    let stat = rustix::fs::stat("/proc/self/task").map_err(|errno| {
        io::Error::new(
            io::Error::from(errno).kind(),
            format!("cannot count the own threads in /proc: {errno}"),
        )
    })?;
    Ok(stat.st_nlink == 3)
}

/// `getsid(0)`: the session of this process; 0 where its leader is outside of this pid namespace.
pub fn session() -> i32 {
    // SAFETY: takes no pointers.
    unsafe { libc::getsid(0) }
}

/// `getsid(2)`: the session of another process, 0 where its leader is outside of this pid namespace; nothing once that
/// process is gone.
pub fn session_of(pid: Pid) -> Option<i32> {
    // SAFETY: takes no pointers.
    let session = unsafe { libc::getsid(pid.as_raw_nonzero().get()) };
    (session >= 0).then_some(session)
}

/// `getpgrp()`: the process group of this process; 0 where its leader is outside of this pid namespace.
pub fn group() -> i32 {
    // SAFETY: takes no pointers.
    unsafe { libc::getpgrp() }
}

/// `getpgid(2)`: the process group of another process, 0 where its leader is outside of this pid namespace; nothing once that
/// process is gone.
pub fn group_of(pid: i32) -> Option<i32> {
    // SAFETY: takes no pointers.
    let group = unsafe { libc::getpgid(pid) };
    (group >= 0).then_some(group)
}

/// `_exit(2)`: ends this process at once, without running what the program that it is a copy of has registered.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: takes no pointers and does not return.
    unsafe { libc::_exit(code) }
}
