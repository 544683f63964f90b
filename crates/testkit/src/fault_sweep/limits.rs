//! What is not injected, each with its reason.

use super::word::{Fault, Injection, Place};

/// Calls that are left alone.
const CALLS: &[(&str, &str)] = &[
    ("close", "frees the descriptor whatever it answers (close(2))"),
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
    ("futex", "nobody else waits: one thread"),
    ("mmap", "memory that cannot be had aborts: as SIGKILL, which is injected"),
    ("brk", "falls back to mmap"),
    ("munmap", "fails only for addresses that are wrong"),
    ("mprotect", "before `main`"),
    ("clock_nanosleep", "fails for wrong times only, and EINTR"),
    ("prlimit64", "never fails for the process itself"),
    (
        "getrandom",
        "the C library and Rust end the process without it; the kernel gives it since the start of the host",
    ),
    ("getrusage", "never fails"),
    ("waitid", "asked without waiting it has no error but that there is no child"),
    ("wait4", "as waitid"),
    ("sched_yield", "never fails"),
];

/// Errors that a call cannot have.
const ERRORS: &[(&str, &[&str], &str)] = &[
    ("flock", &["EAGAIN"], "says that somebody holds the lock: the answer, not a failure"),
    (
        "fstat",
        &["EINTR", "EAGAIN", "EMFILE", "ENOSPC", "EPERM"],
        "of an open file: an error of the disk, or of memory",
    ),
];

/// Calls that a host may refuse for good: for want of room, of descriptors, of permission. Without the others, such as
/// waitid(2) and ppoll(2), nothing could be done at all. Those that open /proc fail once only: without it each pid is asked for,
/// which takes minutes under a tracer.
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

/// Whether all calls of this name are let fail, too.
pub(crate) fn may_last(call: &str) -> bool {
    LASTING.contains(&call)
}

/// Why nothing is injected there; none where it is.
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
    // Between the clone and the exec the process is the command to be, and does nothing that it could undo.
    (role == "leader" && fault == Fault::Kill).then_some("the command's own process, which anybody may kill")
}
