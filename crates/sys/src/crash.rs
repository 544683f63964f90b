//! Crash points, for tests only: see [`crash_point!`](crate::crash_point).

/// Ends this process by SIGKILL if `PENFOLD_CRASH_AT` names this place.
#[expect(
    clippy::disallowed_methods,
    reason = "of tests only, which tell the place by the environment; and this process is who it is"
)]
pub fn here(name: &str) {
    if std::env::var_os("PENFOLD_CRASH_AT").is_some_and(|wanted| wanted == name) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}
