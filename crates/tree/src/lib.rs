#![doc = include_str!("../README.md")]
//! # Invariants
//! - [`Report::gone`] follows from a look at what is left, never from a signal sent.
//! - A process that may belong to other code of the program is neither signalled nor reaped.
//! - Every signal goes through a pidfd whose identity was checked.
//!
//! # Non-goals
//! Records on disk, limits, terminals, a tree that outlives its program: `penfold run` has them.

mod adoption;
mod ending;
mod options;
mod processes;
mod report;
#[cfg(feature = "tokio")]
pub mod tokio;
mod tree;

pub use options::Options;
pub use penfold_teardown::{EndedBy, EndedMember, Findings, Survivor};
pub use processes::Proof;
pub use report::Report;
pub use tree::Tree;
