//! Who is alive: process identity, `/proc` readers, process trees and verified handles.
//!
//! **Purpose.** Answer "which processes are there, whose are they, and is this still the same one" quickly enough
//! for the hot path of a teardown, and honestly: an answer that could not be read in full says so
//! ([`Completeness`], [`Presence::Unknown`], [`Evidence::Hidden`]) and is never mistaken for "nothing there".
//!
//! **Non-goals.** No policy (who must end, in what order), no waiting, no caching. Nothing here changes a process,
//! except [`Process::signal`], which is the only safe way to aim at one.
//!
//! **Invariants.**
//! - Only `ENOENT` and `ESRCH` mean "gone". Any other failure is an error or makes the answer incomplete.
//! - A [`Process`] refers to one incarnation for ever: it is a pidfd plus the identity read while that pidfd was
//!   known to be alive. A reused pid cannot be reached through it.
//! - State `Z` of a leader is not death: see [`Stat::is_dead`].
//! - One [`ProcFs`] reuses its buffers; after the first calls its readers allocate for what they return only.

mod environ;
mod handle;
mod id;
pub mod names;
mod numbers;
mod path;
mod procfs;
mod stat;
mod status;
mod tree;

pub use environ::Evidence;
pub use handle::{Delivery, Process};
pub use id::{ProcessId, StartTime, boot_id, pid_from_raw};
pub use numbers::ParseError;
pub use procfs::{Completeness, FileId, Presence, ProcFs};
pub use rustix::process::{Pid, Signal};
pub use stat::{Stat, State};
pub use status::Status;
