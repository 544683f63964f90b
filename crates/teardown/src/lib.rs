//! The teardown of a sandbox: knows its members, ends them all, verifies, and reports.
//!
//! # In ten lines
//! ```no_run
//! use std::process::Command;
//! use std::time::Duration;
//! use penfold_teardown::{StopPolicy, Spawned};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut tree = Spawned::start(Command::new("sh").args(["-c", "setsid sleep 1000 & sleep 1000"]))?;
//! // … later, from the same thread or another:
//! let findings = tree.end(&StopPolicy { grace: Duration::from_secs(2), ..StopPolicy::default() })?;
//! assert!(findings.verified, "still there: {:?}", findings.survivors);
//! # Ok(())
//! # }
//! ```
//!
//! # The parts
//! - [`lifecycle`] — the pure table: the action for each phase and event.
//! - [`Teardown`] — the members: a cgroup leaf, the children of a subreaper, or a [`Search`] over the host. Asks,
//!   kills, reaps and looks.
//! - [`drive()`] — the loop between the two, which waits on a [`Host`].
//! - [`report`] — the findings.
//! - [`end`] — a synchronous teardown, for processes that penfold did not start.
//! - [`Spawned`] — a tree that a program starts and ends itself.
//!
//! # Invariants
//! - Every signal goes through a pidfd whose identity was checked, or to an unreaped child of this process. The pid of
//!   an unreaped child cannot be reused.
//! - [`Phase::Gone`](lifecycle::Phase::Gone) follows from an observation, never from a signal sent.
//! - Every wait has a deadline, except the wait for the sandbox to end.
//!
//! # Non-goals
//! Records on disk, sockets, arguments, output; async runtimes. This crate has no global state.

mod drive;
pub mod lifecycle;
mod members;
pub mod report;
mod resource;
mod selector;
pub mod spare;
mod spawned;
mod survey;

pub use drive::{Host, StopPolicy, drive};
pub use members::{Completion, Leader, Scope, Teardown};
pub use report::{Cause, Ended, EndedBy, Findings, Level, Step, Survivor};
pub use resource::{Resource, release};
pub use selector::{Found, MARKER, Marker, Search, Selector, unified};
pub use spare::{Outside, OutsideSandbox, SpareRule, Spared, SparedMark, Sparing};
pub use spawned::{Spawned, end};
pub use survey::{Population, Survey};
