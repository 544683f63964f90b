//! The teardown of a sandbox: knows its members, ends them all, verifies, and reports.
//!
//! A program that starts a command and ends it with all that it has started wants `penfold-tree`, which is built on this.
//!
//! # In ten lines
//! ```no_run
//! use penfold_process::ProcFs;
//! use penfold_teardown::{MemberScope, Search, Selector, StopPolicy, Teardown, end_members};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut proc = ProcFs::open()?;
//! let search = Search::new(Selector::Session(4242), &mut proc)?;
//! let mut teardown = Teardown::new(proc, None, MemberScope::Host(Box::new(search)));
//! let findings = end_members(&mut teardown, &StopPolicy::default(), &mut []);
//! println!("ended {}, left: {:?}", findings.ended.len(), findings.survivors);
//! # Ok(())
//! # }
//! ```
//! Here `verified` means that several looks have found no process of session 4242, nor below one. See [`end_members`] for what such a look cannot see.
//!
//! # The parts
//! - [`lifecycle`] — the pure table: the action for each phase and event.
//! - [`Teardown`] — the members: a cgroup leaf, the children of a subreaper, or a [`Search`] over the host. Asks,
//!   kills, reaps and looks.
//! - [`drive_teardown()`] — the loop between the two, which waits on a [`TeardownHost`].
//! - [`report`] — the findings.
//! - [`end_members`] — a synchronous teardown, for processes that penfold did not start.
//!
//! # Invariants
//! - Every signal goes through a pidfd whose identity was checked, or to an unreaped child of this process. The pid of
//!   an unreaped child cannot be reused.
//! - [`Phase::Gone`](lifecycle::Phase::Gone) follows from an observation, never from a signal sent.
//! - Every wait has a deadline, except the wait for the sandbox to end.
//!
//! # Non-goals
//! Records on disk, sockets, arguments, output; async runtimes. This crate has no global state.

mod blocking;
mod drive;
pub mod lifecycle;
mod members;
pub mod report;
mod resource;
mod selector;
pub mod spare;
mod survey;

pub use blocking::end_members;
pub use drive::{Linger, StopPolicy, TeardownHost, drive_teardown};
pub use members::{Completion, Leader, MemberScope, Teardown};
pub use report::{Cause, EndedBy, EndedMember, Findings, Level, Survivor, TeardownStep};
pub use resource::{Resource, release_resources};
pub use selector::{MARKER, Marker, Search, SearchResult, Selector, unified_cgroup};
pub use spare::{OutsideFinder, OutsideSandbox, SparePolicy, SpareRule, SparedMark, SparedProcess};
pub use survey::{Population, Survey};
