//! The scheduling policy of this process: sched(7).

/// Tells whether this process runs only when nothing else wants to (`SCHED_IDLE`).
pub fn is_idle() -> bool {
    // SAFETY: touches no memory; 0 means the calling thread.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_IDLE }
}

/// Makes this process run only when nothing else wants to. Every user may call this.
pub fn enter_idle() {
    set(libc::SCHED_IDLE);
}

/// Gives this process the usual share of time. If `RLIMIT_NICE` does not allow its nice value, only root may: for other
/// users nothing changes.
pub fn leave_idle() {
    set(libc::SCHED_OTHER);
}

/// The looks of [`is_seen_soon`]: about 30 µs on an idle host.
const LOOKS: usize = 48;

/// Looks for what another process is about to do, and gives that process the processor between two looks; false if it has not
/// happened soon. The caller then waits as usual.
///
/// A sleep and a wake-up of a few microseconds cost far more than that on an idle host: the processor halts meanwhile, and in a virtual machine
/// the hypervisor must start it again.
pub fn is_seen_soon(mut is_seen: impl FnMut() -> bool) -> bool {
    for _ in 0..LOOKS {
        if is_seen() {
            return true;
        }
        rustix::thread::sched_yield();
    }
    false
}

fn set(policy: libc::c_int) {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters live for the call, which does not keep the pointer; 0 means the calling thread.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
}
