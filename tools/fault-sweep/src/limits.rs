//! The faults that are not injected, each with its reason.

use crate::word::{Fault, Injection, Place};

/// Calls that never fail here.
const CALLS: &[(&str, &str)] = &[
    ("close", "frees the descriptor in any case (close(2))"),
    ("exit_group", "does not return"),
    ("exit", "does not return"),
    ("getpid", "never fails"),
    ("gettid", "never fails"),
    ("getppid", "never fails"),
    ("getuid", "never fails"),
    ("geteuid", "never fails"),
    ("getgid", "never fails"),
    ("getegid", "never fails"),
    ("getsid", "never fails for the process itself"),
    ("rt_sigreturn", "does not return"),
    ("set_robust_list", "before `main`, and in the C library's fork"),
    ("set_tid_address", "before `main`"),
    ("rseq", "before `main`"),
    ("arch_prctl", "before `main`"),
    ("futex", "never waits: the process has one thread"),
    ("mmap", "without memory the process aborts: as with SIGKILL, which is injected"),
    ("brk", "falls back to mmap"),
    ("munmap", "fails only for wrong addresses"),
    ("mprotect", "before `main`"),
    ("clock_nanosleep", "fails for wrong times only, and EINTR"),
    ("prlimit64", "never fails for the process itself"),
    ("getrandom", "the C library and Rust abort on failure; the call fails only early in the boot"),
    ("getrusage", "never fails"),
    ("waitid", "with WNOHANG its only error is that there is no child"),
    ("wait4", "as waitid"),
    ("sched_yield", "never fails"),
];

/// Errors that a call cannot have.
const ERRORS: &[(&str, &[&str], &str)] = &[
    ("flock", &["EAGAIN"], "means that a process holds the lock: an answer, not a failure"),
    (
        "fstat",
        &["EINTR", "EAGAIN", "EMFILE", "ENOSPC", "EPERM"],
        "an open file has only errors of the disk or of memory",
    ),
];

/// Calls that a host may refuse permanently: for lack of space, descriptors or permission. Without other calls, such as
/// waitid(2) and ppoll(2), no operation would be possible. Calls that open /proc fail once only: without /proc, penfold
/// tries each pid, which takes minutes under a tracer.
const LASTING: &[&str] = &[
    "openat",
    "openat2",
    "mkdirat",
    "unlinkat",
    "write",
    "pwrite64",
    "getdents64",
    "linkat",
    "renameat",
    "symlinkat",
    "newfstatat",
    "statx",
    "fsetxattr",
    "pidfd_open",
    "socket",
    "socketpair",
    "signalfd4",
    "eventfd2",
    "pipe2",
    "memfd_create",
    "clone",
    "clone3",
    "bind",
    "listen",
    "flock",
    "statfs",
    "readlink",
];

/// Tells whether all calls with this name may fail too.
pub(crate) fn may_last(call: &str) -> bool {
    LASTING.contains(&call)
}

/// Returns the reason why this fault is not injected; `None` if it is.
pub(crate) fn excused(word: &Injection) -> Option<&'static str> {
    call(&word.aim.call).or_else(|| error(word)).or_else(|| place(word.place, &word.aim.role, word.fault))
}

fn call(name: &str) -> Option<&'static str> {
    CALLS.iter().find(|(call, _)| *call == name).map(|(_, reason)| *reason)
}

fn error(word: &Injection) -> Option<&'static str> {
    let fault = word.fault.to_string();
    ERRORS
        .iter()
        .find(|(call, errors, _)| *call == word.aim.call && errors.contains(&fault.as_str()))
        .map(|(_, _, reason)| *reason)
}

fn place(_: Place, role: &str, fault: Fault) -> Option<&'static str> {
    // Between clone and exec the process is the future command, and can undo nothing.
    (role == "leader" && fault == Fault::Kill)
        .then_some("the command's own process, which any process may kill")
}
