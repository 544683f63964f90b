//! The files in the workspace of a sandbox, the directory in which its command started.
//!
//! No path leads out of the workspace, by `..`, a link, or a race: the kernel resolves each path below an open directory
//! (openat2(2) with `RESOLVE_BENEATH` and `RESOLVE_NO_MAGICLINKS`). In the workspace of a jail, the server acts without
//! capabilities.
//!
//! - [`Workspace`] — finds, opens, lists, makes, moves and removes files.
//! - [`write_body`] — writes the body of a request to a file that appears whole.

mod error;
mod rights;
mod tree;
mod upload;
mod workspace;

pub use error::FileError;
pub use tree::{Entry, EntryPage};
pub use upload::{UploadError, write_body};
pub use workspace::{FilePlace, Workspace};
