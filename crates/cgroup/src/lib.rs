//! One cgroup v2 leaf as a value: find a place, create, join, freeze, kill, watch, measure, remove.
//!
//! **Purpose.** A cgroup is the strongest way to know the members of a sandbox: no member can leave the cgroup by
//! itself without write access to another one. [`Place`] finds the directory in which this process may create leaves:
//! on pure cgroup v2, on hybrid hosts, below a delegated cgroup and in a container. [`Leaf`] is such a cgroup.
//!
//! **Non-goals.** No resource limits and no need for controllers: a leaf only lists its members. cgroup v1 is used for
//! one purpose, to move a process out of a freezer ([`v1freezer`]). No waiting and no escalation of kills: `teardown`
//! does both.
//!
//! **Invariants.**
//! - No process is spawned into a killed leaf: [`Leaf::kill`] consumes the leaf and returns a [`KilledLeaf`]. Since
//!   Linux commit b69bb476dee9 the kernel kills at birth every process that is cloned into such a cgroup.
//! - Neither a successful kill nor an empty list of processes proves anything: [`Cgroup::populated`] does.
//! - Processes are signalled through verified pidfds, after a check that they are (still) in the leaf.
//! - Leaves are made in the caller's own cgroup, so that the limits of the caller hold for the leaf too.

mod dir;
mod leaf;
mod members;
mod membership;
pub mod mountinfo;
mod oom;
mod place;
pub mod v1freezer;
mod walk;

pub use leaf::{Cgroup, Error, KillFailed, KilledLeaf, Leaf, RemoveFailed, Usage};
pub use membership::Membership;
pub use place::{Located, NoPlace, Place};
