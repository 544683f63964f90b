//! The scheduling policy of this process: sched(7).

/// Whether this process runs only when nothing else wants to (`SCHED_IDLE`).
pub fn is_idle() -> bool {
    // SAFETY: touches no memory; 0 means the calling thread.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_IDLE }
}

/// Makes this process run only when nothing else wants to. Anybody may.
pub fn enter_idle() {
    set(libc::SCHED_IDLE);
}

/// Gives this process the usual share of time. Where its nice value is not allowed by `RLIMIT_NICE`, only root may: then
/// nothing changes.
pub fn leave_idle() {
    set(libc::SCHED_OTHER);
}

fn set(policy: libc::c_int) {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters live for the call and are not kept; 0 means the calling thread.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
}
