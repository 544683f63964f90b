//! One cgroup v2 leaf as a value: find a place, create, limit, join, freeze, kill, watch, measure, remove.
//!
//! **Purpose.** A cgroup is the strongest way to know the members of a sandbox: no member can leave the cgroup by
//! itself without write access to another one. [`LeafPlace`] finds the directory in which this process may create leaves:
//! on pure cgroup v2, on hybrid hosts, below a delegated cgroup and in a container. [`Leaf`] is such a cgroup.
//!
//! [`LimitedPlace`] finds the directory for leaves with [`Limits`], which need the controllers `memory`, `pids` and `cpu`.
//! Without limits a leaf needs no controller: it only lists its members.
//!
//! **Non-goals.** No limits by other means than the controllers of cgroup v2. cgroup v1 is used for two purposes: to move
//! a process out of a freezer ([`v1freezer`]), and to list the processes of a cgroup ([`v1group`]). No waiting and no escalation of kills: `teardown` does both.
//!
//! **Invariants.**
//! - No process is spawned into a killed leaf: [`Leaf::kill`] consumes the leaf and returns a [`KilledLeaf`]. Since
//!   Linux commit b69bb476dee9 the kernel kills at birth every process that is cloned into such a cgroup.
//! - Neither a successful kill nor an empty list of processes proves anything: [`Cgroup::populated`] does.
//! - Processes are signalled through verified pidfds, after a check that they are (still) in the leaf.
//! - The limits of the caller hold for the leaf too. A leaf without limits of its own is made in the caller's cgroup; one
//!   beside it gets the caller's limits where they are stricter.
//! - A limit is held or refused: what was written is read back.
//!
//! # Example
//! ```no_run
//! use penfold_cgroup::{Leaf, LeafPlace};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let leaf = Leaf::create(&LeafPlace::find_here()?, "build-17")?;
//! std::fs::write(leaf.path().join("cgroup.procs"), "4711")?;
//! let killed = leaf.kill()?;
//! while killed.populated()? {
//!     std::thread::sleep(std::time::Duration::from_millis(1));
//! }
//! killed.remove()?;
//! # Ok(())
//! # }
//! ```

mod dir;
mod leaf;
pub mod limits;
mod members;
mod membership;
pub mod mountinfo;
mod oom;
mod place;
mod readings;
pub mod v1freezer;
pub mod v1group;
mod walk;

pub use leaf::{Cgroup, CgroupError, KillFailed, KilledLeaf, Leaf, LeafUsage, RemoveFailed};
pub use limits::{LimitError, LimitedPlace, Limits};
pub use membership::Membership;
pub use oom::Shortages;
pub use place::{CallerCgroup, LeafPlace, NoPlace};
pub use readings::Readings;
