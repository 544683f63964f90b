//! Crash points, for tests only: see [`crash_point!`](crate::crash_point).

/// Ends this process by SIGKILL if `PENFOLD_CRASH_AT` names this place, and stops the process if `PENFOLD_STOP_AT`
/// does. A test that stops the process changes the host around it and then continues the process.
#[expect(
    clippy::disallowed_methods,
    reason = "of tests only, which tell the place by the environment; and this process is who it is"
)]
pub fn here(name: &str) {
    for (told, signal) in [
        ("PENFOLD_CRASH_AT", rustix::process::Signal::KILL),
        ("PENFOLD_STOP_AT", rustix::process::Signal::STOP),
    ] {
        if std::env::var_os(told).is_some_and(|wanted| wanted == name) {
            let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
        }
    }
}
