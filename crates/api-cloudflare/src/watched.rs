//! Directory trees that are watched with inotify(7), without HTTP.
//!
//! - `filter` — the patterns that choose paths.
//! - `tree` — one watched tree and its changes.
//! - `kept` — the trees that stay watched between two requests.

mod filter;
mod kept;
mod tree;

pub(crate) use filter::{Filter, Pattern};
pub(crate) use kept::{KeptTree, KeptTrees, Slot};
pub(crate) use tree::{Change, ChangeKind, MOST_CHANGES, Tree, TreeRequest, WatchEnd};
