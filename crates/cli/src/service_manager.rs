//! The protocol of systemd: sockets that it hands over (`sd_listen_fds(3)`), and messages about the state (`sd_notify(3)`).

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;

use sd_notify::NotifyState;

use crate::variables;

/// Tells whether a variable belongs to the protocol. It is about this process, and not for what this process starts.
pub(crate) fn is_own(key: &OsStr) -> bool {
    ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "NOTIFY_SOCKET"].iter().any(|own| key == *own)
}

/// Tells the service manager that the service is ready. Without a service manager nothing happens.
pub(crate) fn notify_ready() {
    let _ = sd_notify::notify(&[NotifyState::Ready]);
}

/// Tells the service manager that the service is about to end.
pub(crate) fn notify_stopping() {
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
}

/// The sockets that a service manager has handed over to this process; only the first call returns them.
///
/// # Errors
/// When the environment promises a descriptor that is not open.
pub(crate) fn sockets() -> io::Result<Vec<OwnedFd>> {
    let number = |key: &str| variables::get(OsStr::new(key))?.to_str()?.parse::<i32>().ok();
    let own = rustix::process::getpid().as_raw_pid();
    match (number("LISTEN_PID"), number("LISTEN_FDS")) {
        (Some(pid), Some(count)) if pid == own => {
            penfold_sys::descriptors::take_inherited(usize::try_from(count).unwrap_or(0))
        }
        _ => Ok(Vec::new()),
    }
}
