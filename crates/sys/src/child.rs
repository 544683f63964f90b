//! What has become of the children of this process.
//!
//! Only for a process whose every child is its own business, such as the supervisor: these calls speak for
//! all children and would take the exit code from anybody else in the process who waits by handle.

use std::io;
use std::time::Duration;

use rustix::process::Pid;

/// How a process ended, as `waitid(2)` tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// The answer of [`peek`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peek {
    /// There is no child, alive or dead.
    NoChild,
    /// There are children and none has ended.
    NoneEnded,
    /// This child has ended and waits to be reaped.
    Ended(Pid, Exit),
}

/// `waitid(P_ALL, WEXITED | WNOHANG | WNOWAIT)`: looks for a child that has ended and leaves it as it is.
///
/// Until [`reap`] is called its pid, start time and name stay readable under /proc and no other process can
/// get its pid.
///
/// # Errors
/// None that a caller can act on; `ECHILD` is [`Peek::NoChild`].
pub fn peek() -> io::Result<Peek> {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is valid for writes of a siginfo_t.
    let result = unsafe { libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), options) };
    if result == -1 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ECHILD) { Ok(Peek::NoChild) } else { Err(error) };
    }
    // SAFETY: zeroed above, filled in by the kernel where it had something to say.
    let info = unsafe { info.assume_init() };
    // SAFETY: for a waitid result these members are the ones in use; all zero means "none ended".
    let pid = unsafe { info.si_pid() };
    // SAFETY: as above.
    let status = unsafe { info.si_status() };
    Ok(match Pid::from_raw(pid) {
        None => Peek::NoneEnded,
        Some(pid) if info.si_code == libc::CLD_EXITED => Peek::Ended(pid, Exit::Code(status)),
        Some(pid) => Peek::Ended(pid, Exit::Signal(status)),
    })
}

/// `waitid(P_PID, WEXITED | WNOHANG | WNOWAIT)` for each pid of a range: finds the children of this process, dead or alive,
/// without `/proc`.
#[must_use]
pub fn among(pids: std::ops::RangeInclusive<i32>) -> Vec<Pid> {
    pids.filter(|&pid| is_child(pid)).filter_map(Pid::from_raw).collect()
}

fn is_child(pid: i32) -> bool {
    let Ok(pid) = libc::id_t::try_from(pid) else { return false };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: the kernel writes nothing where it is given no siginfo_t.
    unsafe { libc::waitid(libc::P_PID, pid, std::ptr::null_mut(), options) == 0 }
}

/// What a reaped child had used, its own reaped children included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// User and system time.
    pub cpu: Duration,
    /// Largest resident set of a single process, in bytes.
    pub peak_memory: u64,
}

/// `wait4(pid, WNOHANG)`: reaps one child that [`peek`] has shown.
///
/// # Errors
/// `ECHILD` when it is no child of this process.
pub fn reap(pid: Pid) -> io::Result<Option<Exit>> {
    Ok(match wait4(pid.as_raw_nonzero().get())? {
        (0, _) => None,
        (_, status) => Some(exit(status)),
    })
}

/// The pid and the status of a child that was reaped; the pid is 0 if none has ended.
fn wait4(which: i32) -> io::Result<(i32, i32)> {
    let mut status = 0;
    // SAFETY: `status` is valid for a write; the usage pointer may be null.
    match unsafe { libc::wait4(which, &raw mut status, libc::WNOHANG, std::ptr::null_mut()) } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok((pid, status)),
    }
}

fn exit(status: i32) -> Exit {
    if libc::WIFEXITED(status) {
        Exit::Code(libc::WEXITSTATUS(status))
    } else {
        Exit::Signal(libc::WTERMSIG(status))
    }
}

/// `wait4(-1, WNOHANG)`: reaps any child that has ended; half the calls where nothing of it is to be read before.
///
/// # Errors
/// None that a caller can act on; `ECHILD` is [`Peek::NoChild`].
pub fn reap_any() -> io::Result<Peek> {
    match wait4(-1) {
        Ok((pid, status)) => {
            Ok(Pid::from_raw(pid).map_or(Peek::NoneEnded, |pid| Peek::Ended(pid, exit(status))))
        }
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(Peek::NoChild),
        Err(error) => Err(error),
    }
}

/// `getrusage(RUSAGE_CHILDREN)`: what all children reaped so far have used.
///
/// # Errors
/// None that a caller can cause.
pub fn usage() -> io::Result<Usage> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is valid for writes of an rusage.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed above and filled in by the kernel.
    let usage = unsafe { usage.assume_init() };
    Ok(Usage {
        cpu: duration(usage.ru_utime) + duration(usage.ru_stime),
        peak_memory: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
    })
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u32::try_from(time.tv_usec).unwrap_or(0);
    Duration::new(seconds, micros * 1000)
}
