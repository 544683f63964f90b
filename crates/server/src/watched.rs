//! Directory trees that are watched with inotify(7), on the host or in a jail.
//!
//! - [`Tree`] — one watched tree and its [`Change`]s.
//! - [`Filter`] — the patterns that choose paths.
//! - [`changed`] — waits for changes on the runtime.

mod filter;
mod place;
mod ready;
mod tree;

pub use filter::{Filter, Pattern};
pub use place::Place;
pub use ready::changed;
pub use tree::{Change, ChangeKind, MOST_CHANGES, Tree, TreeRequest, WatchEnd};
