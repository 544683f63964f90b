//! Has sandboxes recovered that have lost all their supervisors: those from before the start, and from then on each one.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use penfold_control::{WatchEvent, WatchSettings};
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::Notify;

use crate::app::AppState;

/// The stack of the watcher's thread.
const STACK: usize = 256 * 1024;
/// The pause after the watcher has failed, as when the state root was removed.
const PAUSE: Duration = Duration::from_secs(1);

/// Watches on a thread of its own, for as long as this process lives. The answer is notified once the sandboxes that were
/// lost before are recovered.
///
/// # Errors
/// When the thread cannot be started.
pub(crate) fn watch_orphans(app: &AppState) -> io::Result<Arc<Notify>> {
    let ready = Arc::new(Notify::new());
    let (app, told) = (Arc::clone(app), Arc::clone(&ready));
    let settings =
        WatchSettings { state_root: app.config.state_root.clone(), program: app.config.program.clone() };
    // The thread ends with the process.
    let never = eventfd(0, EventfdFlags::CLOEXEC)?;
    std::thread::Builder::new().name("watch".to_owned()).stack_size(STACK).spawn(move || {
        let mut tell = |event: WatchEvent<'_>| match event {
            WatchEvent::Ready => {
                app.set_ready();
                told.notify_one();
            }
            WatchEvent::Lost(id) => tracing::warn!(id, "a sandbox has lost its supervisors"),
            WatchEvent::Recovered(id) => {
                app.count(|metrics| {
                    metrics.sandboxes_recovered.inc();
                });
                tracing::info!(id, "a lost sandbox was recovered");
            }
            WatchEvent::Unrecovered(id) => tracing::error!(id, "something of a lost sandbox may be left"),
        };
        loop {
            match penfold_control::watch_sandboxes(&settings, never.as_fd(), &mut tell) {
                Ok(()) => return,
                Err(error) => {
                    let reason = penfold_state::error_chain(&error);
                    tracing::error!(reason, "cannot watch the state root");
                    let timeout = rustix::event::Timespec::try_from(PAUSE).ok();
                    let _ = rustix::event::poll(&mut [], timeout.as_ref());
                }
            }
        }
    })?;
    Ok(ready)
}
