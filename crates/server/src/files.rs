//! The files of a sandbox: those in its workspace, the directory in which its command started, or all that its jail sees.
//!
//! No path leads out, by `..`, a link, or a race: the kernel resolves each path below an open directory (openat2(2) with
//! `RESOLVE_NO_MAGICLINKS`, and `RESOLVE_BENEATH` for a workspace or `RESOLVE_IN_ROOT` for a jail). In a jail, and in its workspace, the
//! server acts without capabilities. On the machine itself it acts with the rights of a user.
//!
//! - [`Root`] — the open directory. [`Jail`] — that of a jail.
//! - [`Workspace`] — finds, opens, lists, makes, moves and removes files.
//! - [`write_body`] — writes the body of a request to a file that appears whole.

mod across;
mod error;
mod jail;
mod range;
mod rights;
mod root;
mod tree;
mod upload;
mod workspace;

pub use error::FileError;
pub use jail::{IdMap, Jail};
pub use range::{byte_range, send_range};
pub use root::Root;
pub use tree::{Entry, EntryPage};
pub use upload::{NewFile, UploadError, is_draft, write_body};
pub use workspace::{FilePlace, Workspace};
