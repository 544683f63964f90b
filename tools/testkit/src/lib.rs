//! Proves that nothing is left: guards for tests, hostile process trees and a judge, for penfold and for any other program
//! that starts processes.
//!
//! - [`LeakGuard`] compares the host before and after a test and names every difference.
//! - [`ReapOnDrop`] ends what the test has started since.
//! - [`TestHome`] is a directory for what the test writes, which is not removed over living sandboxes.
//! - [`Tree`] runs a tool around one of the [`catalog`]'s hostile trees, waits until the tree is complete, and returns
//!   the survivors afterwards. It always cleans up, also when the test is killed: the tree lives below a process of the
//!   [`program`] that ends everything once the test is gone.
//! - [`Bystander`] is a process that must not be hit.
//! - [`FrozenFs`] makes members hang in state D, [`DelegatedCgroup`] delegates a cgroup to an ordinary user.
//! - [`judge`](mod@judge) runs all trees against a tool and counts.
//!
//! # A test with guards
//! Values are dropped in the reverse order, so the guard that ends everything is made first:
//! ```no_run
//! use penfold_testkit::{LeakGuard, ReapOnDrop, TestHome};
//!
//! # fn start_server(_: &std::path::Path) -> std::io::Result<std::process::Child> { Err(std::io::ErrorKind::Other.into()) }
//! # fn test() -> std::io::Result<()> {
//! let _reaper = ReapOnDrop::new();
//! let home = TestHome::new()?;
//! let guard = LeakGuard::new();
//! let mut server = start_server(home.path())?;
//! // …
//! server.kill()?;
//! server.wait()?;
//! guard.check();
//! # Ok(())
//! # }
//! ```
//!
//! # cargo-nextest and cargo test
//! With **cargo-nextest** each test has a process of its own, and the guards see its processes only.
//!
//! With **cargo test** all tests of a binary share a process. Only descent tells their processes apart, so guards of different
//! tests take turns. What a test without a guard starts meanwhile is taken for that of the test with the guard: give a guard to
//! every test of the binary that starts processes, or run `cargo test -- --test-threads 1`.
//!
//! The time limit of a runner is SIGKILL, and no guard inside of the process acts then. Run the tests below `penfold guard`, which
//! also sets `PENFOLD_TEST_HOME_BASE` for [`TestHome`]:
//! ```sh
//! penfold guard -- cargo nextest run
//! penfold guard -- cargo test
//! ```
//!
//! # A tool around a hostile tree
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
//! The trees need a program beside the test: [`program`] tells how a crate gets it.
//!
//! # Non-goals and invariants
//! Non-goals: speed, or code in common with the tested program. The readers of /proc here are separate, so an error in
//! penfold's readers cannot hide itself.
//!
//! Only processes that a test or tree started are signalled, and only by pidfd. Every wait has a deadline.

#![allow(
    clippy::disallowed_methods,
    reason = "what is judged is looked at from outside, by short polls with a deadline, and tests have an environment"
)]

mod another_user;
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

pub use another_user::run_test_as;
pub use bystander::{Bystander, BystanderError};
pub use delegated::{DelegatedCgroup, remove_delegated};
pub use frozen_fs::{FrozenFs, FrozenFsError};
pub use guard::{LeakGuard, Scope};
pub use reap_on_drop::ReapOnDrop;
pub use snapshot::{Difference, Filter, HostSnapshot, Kind};
pub use test_home::{HOME_BASE, LiveSandbox, TestHome};
pub use tool::{NoTestkit, Tool, binary, use_own_binary};
pub use tree::{Survivor, ToolExit, Tree, TreeError};
pub use until::{DEADLINE, skip, until, until_after, wait_until};
