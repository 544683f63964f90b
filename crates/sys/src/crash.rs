//! Crash points, for tests only: see [`crash_point!`](crate::crash_point).

use std::sync::atomic::{AtomicU32, Ordering};

/// The passes of the place that a variable names.
static PASSES: AtomicU32 = AtomicU32::new(0);

/// Ends this process by SIGKILL if `PENFOLD_CRASH_AT` names this place, and stops the process if `PENFOLD_STOP_AT`
/// does. `NAME:3` means the third time that a process comes by. A test that stops the process changes the host around
/// it and then continues the process.
#[expect(
    clippy::disallowed_methods,
    reason = "of tests only, which tell the place by the environment; and this process is who it is"
)]
pub fn here(name: &str) {
    for (variable, signal) in [
        ("PENFOLD_CRASH_AT", rustix::process::Signal::KILL),
        ("PENFOLD_STOP_AT", rustix::process::Signal::STOP),
    ] {
        let Some(wanted) = std::env::var_os(variable).and_then(|wanted| wanted.into_string().ok()) else {
            continue;
        };
        let (wanted, pass) = wanted.split_once(':').unwrap_or((&wanted, "1"));
        if wanted == name && PASSES.fetch_add(1, Ordering::Relaxed) + 1 == pass.parse().unwrap_or(1) {
            // To this thread: another one might take a signal to the process, and this one go on meanwhile.
            // SAFETY: raise(3) sends a signal, and touches no memory of ours.
            unsafe { libc::raise(signal.as_raw()) };
        }
    }
}

/// Tells whether `PENFOLD_LEAVE_OUT` names this step: a test must notice what the step would have done.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "of tests only, which tell the step by the environment")]
pub fn is_left_out(name: &str) -> bool {
    std::env::var_os("PENFOLD_LEAVE_OUT").is_some_and(|left_out| left_out == name)
}
