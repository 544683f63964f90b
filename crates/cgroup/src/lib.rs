//! One cgroup v2 leaf as a value: find where it may live, create, join, freeze, kill, watch, measure, remove.
//!
//! **Purpose.** A cgroup is the strongest way to know who belongs to a sandbox: no member can leave it by itself
//! without write access to another one. [`Place`] finds the directory in which this process may make leaves, on pure
//! cgroup v2, on hybrid hosts, below a delegated cgroup and in a container. [`Leaf`] is such a cgroup.
//!
//! **Non-goals.** No resource limits and no need for controllers: a leaf only says who is in it. cgroup v1 is used for
//! one thing, to get a process out of a freezer ([`v1freezer`]). No waiting and no ladder of kills: that is teardown's.
//!
//! **Invariants.**
//! - A leaf that was killed is never spawned into again: [`Leaf::kill`] consumes it and gives a [`KilledLeaf`]. Since
//!   Linux commit b69bb476dee9 the kernel kills at birth whatever is cloned into such a cgroup.
//! - Neither a successful kill nor an empty list of processes proves anything: [`Cgroup::populated`] does.
//! - Processes are signalled through verified pidfds, after a look whether they are (still) in the leaf.
//! - Leaves are made in the caller's own cgroup, so that whatever limits and contains the caller holds for them too.

mod dir;
mod leaf;
mod members;
mod membership;
pub mod mountinfo;
mod place;
pub mod v1freezer;
mod walk;

pub use leaf::{Cgroup, Error, KillFailed, KilledLeaf, Leaf, RemoveFailed, Usage};
pub use membership::Membership;
pub use place::{Located, NoPlace, Place};
