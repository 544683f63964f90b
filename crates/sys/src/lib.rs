//! System calls that `rustix` lacks, wrapped once. This is the only crate of the workspace that may use `unsafe`.
//!
//! - [`fork()`]: copies this process; refused while other threads run.
//! - [`launch`]: a child that waits until its parent releases it, then executes another program. Between clone and
//!   exec, the child makes only async-signal-safe calls and allocates nothing.
//! - [`signal`]: masks, dispositions and the signal descriptor.
//! - [`schedule`]: the idle scheduling policy, under which this process runs only when nothing else wants to.
//! - [`entry!`]: starts a program without the preparations of Rust's runtime.
//! - [`title`]: the name and the command line of this process.
//! - [`alarm`]: a timer that continues this process if somebody stops it.
//! - [`namespace`] and [`device`]: namespaces, tap and loop devices.
//! - [`child`]: waits for the children of this process, with and without reaping them.
//!
//! Non-goals: policy, parsing, anything that a safe crate already does.
//!
//! Invariant: no function here leaves a signal blocked, a child unreaped or a descriptor inheritable, unless its
//! documentation says so.

pub mod alarm;
pub mod child;
pub mod descriptors;
pub mod device;
pub mod entry;
pub mod fork;
#[cfg(feature = "hostile")]
pub mod hostile;
pub mod launch;
#[cfg(target_pointer_width = "64")]
pub mod memory;
pub mod namespace;
pub mod peer;
pub mod schedule;
pub mod signal;
pub mod title;
#[cfg(feature = "hostile")]
pub mod trace;

pub use fork::{ForkSide, fork};

/// Ends this process by SIGKILL if a test names this place.
///
/// The macro compiles to nothing without debug assertions: test builds have crash points, releases have none. A test
/// names the place in the variable `PENFOLD_CRASH_AT`. The variable is read here, so libraries need no test plumbing.
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {
        #[cfg(debug_assertions)]
        $crate::crash::here($name);
    };
}

#[cfg(debug_assertions)]
pub mod crash;
