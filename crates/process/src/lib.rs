//! Reads processes: identity, `/proc` readers, process trees and verified handles.
//!
//! **Purpose.** This crate tells which processes exist, who owns them, and whether a process is still the same one. The
//! readers are quick enough for the hot path of a teardown. A result that could not be read in full says so
//! ([`Completeness`], [`ProcessPresence::Unknown`], [`EnvironmentMatch::Hidden`]) and is never mistaken for "nothing there".
//!
//! **Non-goals.** No policy (which process must end, in what order), no waiting, no caching. Nothing here changes a
//! process, except [`Process::signal`], which is the only safe way to signal a process.
//!
//! **Invariants.**
//! - Only `ENOENT` and `ESRCH` mean "gone". Any other failure is an error or makes the result incomplete.
//! - A [`Process`] refers to one process for ever. It holds a pidfd and the identity that was read while that pidfd was
//!   known to be alive. A reused pid cannot be reached through it.
//! - State `Z` of a main thread does not mean that the process is dead: see [`Stat::is_dead`].
//! - A [`ProcFs`] reuses its buffers; after the first calls its readers allocate only for the values that they return.
//!
//! # Example
//! Signals a process, and never another one that got its pid meanwhile:
//! ```no_run
//! use penfold_process::{ProcFs, Process, Signal, pid_from_raw};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut proc = ProcFs::open()?;
//! let pid = pid_from_raw(4711).ok_or("not a pid")?;
//! if let Some(process) = Process::open(&mut proc, pid)? {
//!     process.signal(Signal::TERM)?;
//! }
//! # Ok(())
//! # }
//! ```

mod environ;
mod executable;
mod handle;
mod id;
mod listeners;
pub mod names;
mod numbers;
mod path;
pub mod path_text;
mod procfs;
mod quote;
mod stat;
mod status;
mod tree;

pub use environ::EnvironmentMatch;
pub use executable::Executable;
pub use handle::{Delivery, Process};
pub use id::{ProcessId, StartTime, boot_id, pid_from_raw};
pub use listeners::{Listener, Listeners, Port};
pub use numbers::ParseError;
pub use procfs::{Completeness, FileId, ProcFs, ProcessPresence};
pub use quote::{quote_words, quoted_cmdline};
pub use rustix::process::{Pid, Signal};
pub use stat::{SchedulerState, Stat};
pub use status::ProcessStatus;
