//! System calls for processes that misbehave on purpose; behind the feature `hostile`, for test programs.

use std::io;

use rustix::process::Pid;

use crate::ForkSide;

/// `exit(2)` of the calling thread alone; the process lives on while another of its threads lives.
///
/// A call in the main thread makes a zombie leader with live threads. No destructor of the thread runs.
pub fn exit_thread() -> ! {
    loop {
        // SAFETY: the raw call ends this thread and touches no memory; values on its stack are leaked, which
        // is allowed.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}

/// `close_range(0, ~0)`—Closes every descriptor of this process.
///
/// The process must not own a descriptor in any value afterwards: dropping the value would close whatever descriptor
/// has the number by then.
///
/// # Errors
/// `ENOSYS` before Linux 5.9; nothing was closed.
pub fn close_all() -> io::Result<()> {
    // SAFETY: closing touches no memory; the caller holds no owned descriptor, as documented.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `ptrace(PTRACE_SEIZE)` and `PTRACE_INTERRUPT`—Traces a process and puts it into the tracing stop.
///
/// # Errors
/// Those of [ptrace(2)](https://man7.org/linux/man-pages/man2/ptrace.2.html); after a failed interrupt the process is
/// traced and runs.
pub fn trace_and_stop(pid: Pid) -> io::Result<()> {
    for request in [libc::PTRACE_SEIZE, libc::PTRACE_INTERRUPT] {
        // SAFETY: neither request reads or writes memory of this process; address and data are null.
        let result = unsafe {
            libc::ptrace(
                request,
                pid.as_raw_nonzero().get(),
                std::ptr::null_mut::<libc::c_void>(),
                std::ptr::null_mut::<libc::c_void>(),
            )
        };
        if result == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// `clone(CLONE_VFORK)` without shared memory: a fork whose parent waits in the kernel until the child ends or executes
/// another program.
///
/// # Errors
/// Those of clone(2); nothing was created. `EDEADLK` with more than one thread.
pub fn fork_and_wait() -> io::Result<ForkSide> {
    let stat = rustix::fs::stat("/proc/self/task")?;
    if stat.st_nlink != 3 {
        return Err(io::Error::from_raw_os_error(libc::EDEADLK));
    }
    let flags = libc::c_long::from(libc::CLONE_VFORK | libc::SIGCHLD);
    // SAFETY: without CLONE_VM and with a null stack this is a fork: the child has its own copy of everything. The
    // process has one thread, so the child inherits no lock that another thread holds.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match i32::try_from(pid) {
        Ok(0) => Ok(ForkSide::Child),
        Ok(pid) if pid > 0 => Ok(ForkSide::Parent(Pid::from_raw(pid).ok_or_else(io::Error::last_os_error)?)),
        _ => Err(io::Error::last_os_error()),
    }
}
