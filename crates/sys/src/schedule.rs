//! The scheduling policy of this process: sched(7).

use std::os::fd::{AsRawFd, BorrowedFd};

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

/// The looks of [`await_briefly`]: about 30 µs on an idle host.
const LOOKS: usize = 48;

/// Waits a few microseconds until a descriptor is readable, and gives the processor away meanwhile. The caller then waits as usual: this
/// call makes that wait short, and says nothing of its result. It is async-signal-safe.
///
/// A sleep and a wake-up of a few microseconds cost far more than that on an idle host: the processor halts meanwhile, and in a virtual machine
/// the hypervisor must start it again.
pub fn await_briefly(fd: BorrowedFd<'_>) {
    let mut polled = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    for _ in 0..LOOKS {
        // SAFETY: one valid `pollfd`, which lives for the call.
        if unsafe { libc::poll(&raw mut polled, 1, 0) } != 0 {
            return;
        }
        rustix::thread::sched_yield();
    }
}

fn set(policy: libc::c_int) {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters live for the call, which does not keep the pointer; 0 means the calling thread.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
}
