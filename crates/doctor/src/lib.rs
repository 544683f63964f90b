//! What a host has that nobody looks after, and what it can do.
//!
//! - [`leaks`] — remains of penfold's sandboxes that have no supervisor: found, and ended on request.
//! - [`foreign`] — strays and virtual machines of other programs: only shown.
//! - [`test_home`] — what a test has left below its directory.
//! - [`slurm`] — what jobs of Slurm have left on a node.
//! - [`host_checks`] — the features of the host, and their meaning for the guarantee.
//!
//! Non-goals: the verbs on sandboxes, which are in `penfold-control`; the verdict on a process that penfold did not start.
//!
//! Invariants:
//! - Unknown means alive: a look that could not read everything proves no leak.
//! - What is ended was found by two looks, or its lock shows that it has no supervisor. Members are ended by the one teardown.

pub mod foreign;
pub mod host_checks;
mod host_processes;
pub mod leaks;
pub mod slurm;
pub mod test_home;

pub use host_processes::Member;
