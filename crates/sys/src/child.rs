//! Waits for the children of this process.
//!
//! These calls take the status of any child. Only a process that owns all its children, such as the supervisor, may use
//! them: other code in the process that waits by handle would lose its exit code.

use std::io;
use std::time::Duration;

use rustix::process::Pid;

/// How a process ended, as `waitid(2)` reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The process exited with this code.
    Code(i32),
    /// This signal ended the process.
    Signal(i32),
}

/// The result of [`peek_child`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeekResult {
    /// This process has no child, alive or dead.
    NoChild,
    /// This process has children, and none of them has ended.
    NoneEnded,
    /// This child has ended and waits to be reaped.
    Ended(Pid, Exit),
}

/// `waitid(P_ALL, WEXITED | WNOHANG | WNOWAIT)`—Finds a child that has ended, without reaping it.
///
/// Until [`reap_child`] is called, the child's pid, start time and name stay readable under /proc and no other process can
/// get its pid.
///
/// # Errors
/// None that a caller can act on; `ECHILD` is [`PeekResult::NoChild`].
pub fn peek_child() -> io::Result<PeekResult> {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is valid for writes of a siginfo_t.
    let result = unsafe { libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), options) };
    if result == -1 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ECHILD) { Ok(PeekResult::NoChild) } else { Err(error) };
    }
    // SAFETY: the value was zeroed above; the kernel filled it in if a child has ended.
    let info = unsafe { info.assume_init() };
    // SAFETY: these members are the ones in use for a waitid result; all zero means "none ended".
    let pid = unsafe { info.si_pid() };
    // SAFETY: as above.
    let status = unsafe { info.si_status() };
    Ok(match Pid::from_raw(pid) {
        None => PeekResult::NoneEnded,
        Some(pid) if info.si_code == libc::CLD_EXITED => PeekResult::Ended(pid, Exit::Code(status)),
        Some(pid) => PeekResult::Ended(pid, Exit::Signal(status)),
    })
}

/// `waitid(P_PID, WEXITED | WNOHANG | WNOWAIT)` for each pid of a range: finds the children of this process, dead or
/// alive, without `/proc`.
#[must_use]
pub fn children_among(pids: std::ops::RangeInclusive<i32>) -> Vec<Pid> {
    pids.filter_map(Pid::from_raw).filter(|&pid| is_child(pid)).collect()
}

/// `waitid(P_PID, WEXITED | WNOHANG | WNOWAIT)`—Tells whether this process has such a child, dead or alive.
#[must_use]
pub fn is_child(pid: Pid) -> bool {
    let Ok(pid) = libc::id_t::try_from(pid.as_raw_nonzero().get()) else { return false };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: with a null siginfo_t the kernel writes nothing.
    unsafe { libc::waitid(libc::P_PID, pid, std::ptr::null_mut(), options) == 0 }
}

/// The resources that a reaped child has used, including its own reaped children.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChildUsage {
    /// User and system time.
    pub cpu: Duration,
    /// Largest resident set of a single process, in bytes.
    pub peak_memory: u64,
}

/// `wait4(pid, WNOHANG)`—Reaps a child that [`peek_child`] has returned.
///
/// # Errors
/// `ECHILD` if the process is no child of this process.
pub fn reap_child(pid: Pid) -> io::Result<Option<Exit>> {
    Ok(match wait4(pid.as_raw_nonzero().get())? {
        (0, _) => None,
        (_, status) => Some(exit(status)),
    })
}

/// Returns the pid and the status of a reaped child; the pid is 0 if no child has ended.
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

/// `wait4(-1, WNOHANG)`—Reaps any child that has ended. This takes half the calls of [`peek_child`] and [`reap_child`], for callers
/// that need nothing from `/proc` first.
///
/// # Errors
/// None that a caller can act on; `ECHILD` is [`PeekResult::NoChild`].
pub fn reap_any() -> io::Result<PeekResult> {
    match wait4(-1) {
        Ok((pid, status)) => {
            Ok(Pid::from_raw(pid).map_or(PeekResult::NoneEnded, |pid| PeekResult::Ended(pid, exit(status))))
        }
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(PeekResult::NoChild),
        Err(error) => Err(error),
    }
}

/// `getrusage(RUSAGE_CHILDREN)`—Returns the resources that all children reaped so far have used.
///
/// # Errors
/// None that a caller can cause.
pub fn children_usage() -> io::Result<ChildUsage> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is valid for writes of an rusage.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the value was zeroed above and filled in by the kernel.
    let usage = unsafe { usage.assume_init() };
    Ok(ChildUsage {
        cpu: duration(usage.ru_utime) + duration(usage.ru_stime),
        peak_memory: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
    })
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u32::try_from(time.tv_usec).unwrap_or(0);
    Duration::new(seconds, micros * 1000)
}
