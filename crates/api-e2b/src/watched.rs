//! Watched directories of sandboxes, without HTTP.
//!
//! - `watch` — one watched directory, and its events.
//! - `kept` — those whose events a client asks for.

mod kept;
mod watch;

pub(crate) use self::kept::Watchers;
pub(crate) use self::watch::{Watch, WatchMessage, watch_error};
