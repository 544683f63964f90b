//! The heart of penfold: knows who belongs to a sandbox, ends them all, looks, and reports.
//!
//! # In ten lines
//! ```no_run
//! use std::process::Command;
//! use std::time::Duration;
//! use penfold_teardown::{Ladder, Spawned};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut tree = Spawned::start(Command::new("sh").args(["-c", "setsid sleep 1000 & sleep 1000"]))?;
//! // … later, from the same thread or another:
//! let findings = tree.end(&Ladder { grace: Duration::from_secs(2), ..Ladder::default() })?;
//! assert!(findings.verified, "still there: {:?}", findings.survivors);
//! # Ok(())
//! # }
//! ```
//!
//! # The parts
//! - [`lifecycle`] — the pure table: what to do when something happens.
//! - [`Teardown`] — who belongs: a cgroup leaf, the children of a subreaper, or a [`Search`] over the host; asks,
//!   kills, reaps and looks.
//! - [`drive()`] — the loop between the two, which waits on a [`Host`].
//! - [`report`] — what was found and done.
//! - [`end`] — the whole of it, here and now, for what penfold did not start.
//! - [`Spawned`] — the whole for a program that starts a tree itself.
//!
//! # Invariants
//! - Nothing is signalled but by pidfd after its identity was checked, or as an unreaped child of this process,
//!   whose pid cannot be anybody else's.
//! - [`Phase::Gone`](lifecycle::Phase::Gone) follows from an observation, never from a signal sent.
//! - No wait is without a deadline but the one for the sandbox to end.
//!
//! # Non-goals
//! Records on disk, sockets, arguments, output; async runtimes. Nothing here is global state.

mod drive;
pub mod lifecycle;
mod members;
pub mod report;
mod resource;
mod selector;
mod spawned;
mod survey;

pub use drive::{Host, Ladder, drive};
pub use members::{Leader, Scope, Teardown};
pub use report::{Cause, Ended, Findings, How, Level, Step, Survivor};
pub use resource::{Resource, release};
pub use selector::{Found, MARKER, Marker, Search, Selector, unified};
pub use spawned::{Spawned, end};
pub use survey::{Population, Survey};
