//! Proves that nothing is left: hostile trees, a leak guard and a judge, for penfold and for any other tool that runs
//! commands.
//!
//! - [`LeakGuard`] compares the host before and after a test and names every difference.
//! - [`Tree`] runs a tool around one of the [`catalog`]'s hostile trees, waits until the tree is complete, and returns
//!   the survivors afterwards. It always cleans up, also when the test is killed: the tree lives below a process of the
//!   `testkit` binary that ends everything once the test is gone.
//! - [`Bystander`] is a process that must not be hit.
//! - [`FrozenFs`] makes members hang in state D, [`DelegatedCgroup`] delegates a cgroup to an ordinary user.
//! - [`judge`](mod@judge) runs all trees against a tool and counts.
//!
//! Non-goals: speed, or code in common with the tested program. The readers of /proc here are separate, so an error in
//! penfold's readers cannot hide itself.
//!
//! Invariants: only processes that a tree started are signalled, and only by pidfd. Every wait has a deadline.
//!
//! ```no_run
//! use std::time::Duration;
//! use penfold_testkit::{LeakGuard, Tool, Tree};
//!
//! let guard = LeakGuard::new();
//! let tool = Tool::new(["target/debug/penfold", "run", "--", "{cmd}"]);
//! let mut tree = Tree::spawn(&tool, "daemon")?;
//! tree.assert_alive();
//! tree.tell_leader_to_exit()?;
//! assert!(tree.await_gone(Duration::from_secs(5)).is_empty());
//! tree.end()?;
//! guard.check();
//! # Ok::<(), penfold_testkit::TreeError>(())
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "what is judged is looked at from outside, by short polls with a deadline, and tests have an environment"
)]

mod bystander;
pub mod catalog;
mod delegated;
mod frozen;
mod frozen_fs;
mod guard;
mod hostile;
pub mod judge;
mod judgement;
pub mod mounts;
pub mod proc;
pub mod program;
mod reap_on_drop;
mod snapshot;
mod subreaper;
#[doc(hidden)]
pub mod sweep;
mod test_home;
mod tool;
mod tree;
mod turn;
mod until;

pub use bystander::{Bystander, BystanderError};
pub use delegated::{DelegatedCgroup, remove_delegated};
pub use frozen_fs::{FrozenFs, FrozenFsError};
pub use guard::{LeakGuard, Scope};
pub use reap_on_drop::ReapOnDrop;
pub use snapshot::{Difference, Filter, HostSnapshot, Kind};
pub use test_home::{HOME_BASE, LiveSandbox, TestHome};
pub use tool::{NoTestkit, Tool, binary, use_own_binary};
pub use tree::{Survivor, ToolExit, Tree, TreeError};
pub use until::{DEADLINE, skip, until, wait_until};
