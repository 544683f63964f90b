//! Tracing of system calls, for test programs that make chosen calls fail; behind the feature `hostile`.
//!
//! Tracing does not disturb a process. Stops of job control remain stops, signals are delivered as they come, and a
//! child of a traced process is traced from its first instruction. Only Linux on x86-64 is supported: elsewhere this
//! module cannot replace calls. [ptrace(2)](https://man7.org/linux/man-pages/man2/ptrace.2.html) describes all of this.

use std::io;

use rustix::process::Pid;

use crate::child::Exit;

/// An event of a traced process, or of a child of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceEvent {
    /// The process is about to make a system call; [`go_on`] allows the call.
    Enter(SystemCall),
    /// A system call has returned this value.
    Leave(i64),
    /// The process has executed another program.
    Execed,
    /// A signal is about to be delivered; [`go_on`] with this signal delivers it.
    Signal(i32),
    /// Job control has stopped the process; [`stay_stopped`] leaves the process stopped.
    Stopped,
    /// Any other stop, including the first one: the process should be continued.
    Other,
    /// The process has ended. If it is a child of this process, it is reaped.
    Ended(Exit),
}

/// A system call and its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemCall {
    /// The number of the call.
    pub number: u64,
    /// The arguments, as the kernel receives them.
    pub arguments: [u64; 6],
}

const ENTRY: u64 = 1;
const EXIT: u64 = 2;
/// `PTRACE_EVENT_STOP` of linux/ptrace.h.
const EVENT_STOP: i32 = 128;

fn request(request: libc::c_uint, pid: Pid, address: usize, data: usize) -> io::Result<libc::c_long> {
    // SAFETY: the requests of this module take numbers, or the address of a buffer that is valid for the given size.
    // The caller owns the buffer.
    let result = unsafe {
        libc::ptrace(
            request,
            pid.as_raw_nonzero().get(),
            std::ptr::without_provenance_mut::<libc::c_void>(address),
            std::ptr::with_exposed_provenance_mut::<libc::c_void>(data),
        )
    };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn wide(number: i32) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// `PTRACE_SEIZE`—Traces a process and all its future forks, without stopping the process. All of them die with the
/// tracer.
///
/// # Errors
/// `EPERM`, `ESRCH`.
pub fn seize_process(pid: Pid) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_EXITKILL;
    request(libc::PTRACE_SEIZE, pid, 0, wide(options)).map(drop)
}

/// `waitpid(-1, __WALL | WNOHANG)`—Returns the next event of a traced process or a child, if there is an event.
///
/// # Errors
/// `ECHILD` if this process has neither children nor traced processes.
pub fn next_trace_event() -> io::Result<Option<(Pid, TraceEvent)>> {
    let mut status = 0;
    // SAFETY: the status is a live i32.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::WNOHANG) };
    if pid == -1 {
        return Err(io::Error::last_os_error());
    }
    let Some(pid) = Pid::from_raw(pid) else { return Ok(None) };
    if libc::WIFEXITED(status) {
        return Ok(Some((pid, TraceEvent::Ended(Exit::Code(libc::WEXITSTATUS(status))))));
    }
    if libc::WIFSIGNALED(status) {
        return Ok(Some((pid, TraceEvent::Ended(Exit::Signal(libc::WTERMSIG(status))))));
    }
    let signal = libc::WSTOPSIG(status);
    let event = match status >> 16 {
        0 if signal == libc::SIGTRAP | 0x80 => call(pid).unwrap_or(TraceEvent::Other),
        0 => TraceEvent::Signal(signal),
        libc::PTRACE_EVENT_EXEC => TraceEvent::Execed,
        EVENT_STOP if signal != libc::SIGTRAP => TraceEvent::Stopped,
        _ => TraceEvent::Other,
    };
    Ok(Some((pid, event)))
}

/// `PTRACE_GET_SYSCALL_INFO`—Tells whether a stop is at the entry or at the exit of a system call.
fn call(pid: Pid) -> Option<TraceEvent> {
    // `struct ptrace_syscall_info` of linux/ptrace.h: kind, architecture, two pointers, then the call or its result.
    let mut info = [0_u64; 11];
    let place = (&raw mut info).expose_provenance();
    request(libc::PTRACE_GET_SYSCALL_INFO, pid, size_of_val(&info), place).ok()?;
    match info[0] & 0xff {
        ENTRY => {
            let [_, _, _, number, arguments @ .., _] = info;
            Some(TraceEvent::Enter(SystemCall { number, arguments }))
        }
        EXIT => Some(TraceEvent::Leave(info[3].cast_signed())),
        _ => None,
    }
}

/// `PTRACE_SYSCALL`—Continues a stopped process until its next system call, and delivers this signal unless it is 0.
///
/// # Errors
/// `ESRCH` if the process has been killed meanwhile.
pub fn go_on(pid: Pid, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_SYSCALL, pid, 0, wide(signal)).map(drop)
}

/// `PTRACE_CONT`—Like [`go_on`], but system calls no longer stop the process.
///
/// # Errors
/// `ESRCH` if the process has been killed meanwhile.
pub fn run_on(pid: Pid, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_CONT, pid, 0, wide(signal)).map(drop)
}

/// `PTRACE_LISTEN`—Leaves a process stopped that job control has stopped.
///
/// # Errors
/// `ESRCH` if the process has been killed meanwhile.
pub fn stay_stopped(pid: Pid) -> io::Result<()> {
    request(libc::PTRACE_LISTEN, pid, 0, 0).map(drop)
}

/// `PTRACE_DETACH`—Stops tracing the process.
///
/// # Errors
/// `ESRCH` if the process has been killed meanwhile.
pub fn detach_process(pid: Pid) -> io::Result<()> {
    request(libc::PTRACE_DETACH, pid, 0, 0).map(drop)
}

/// Replaces the call that a process is about to make by a call that does not exist: the kernel does nothing.
///
/// # Errors
/// Those of `PTRACE_SETREGS`; `ENOSYS` on machines other than x86-64.
pub fn skip_call(pid: Pid) -> io::Result<()> {
    registers(pid, |registers| registers.orig_rax = u64::MAX)
}

/// Makes the call that has just returned fail with this error number.
///
/// # Errors
/// As for [`skip_call`].
pub fn fail_call(pid: Pid, errno: i32) -> io::Result<()> {
    registers(pid, |registers| registers.rax = i64::from(-errno).cast_unsigned())
}

#[cfg(target_arch = "x86_64")]
fn registers(pid: Pid, change: impl FnOnce(&mut libc::user_regs_struct)) -> io::Result<()> {
    let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::zeroed();
    request(libc::PTRACE_GETREGS, pid, 0, registers.as_mut_ptr().expose_provenance())?;
    // SAFETY: the value was zeroed above and filled in by the kernel; any bits are valid.
    let mut registers = unsafe { registers.assume_init() };
    change(&mut registers);
    request(libc::PTRACE_SETREGS, pid, 0, (&raw mut registers).expose_provenance()).map(drop)
}

#[cfg(not(target_arch = "x86_64"))]
fn registers(_: Pid, _: impl FnOnce(&mut Registers)) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

/// A stand-in for the registers on machines whose registers this module cannot change.
#[cfg(not(target_arch = "x86_64"))]
struct Registers {
    orig_rax: u64,
    rax: u64,
}
