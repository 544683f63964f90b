//! What `rustix` lacks, wrapped once: the only crate of the house that may say `unsafe`.
//!
//! - [`fork()`]: a copy of this process, refused while other threads run.
//! - [`launch`]: a child that waits for a word of its parent, then becomes another program. Between the
//!   clone and the exec it makes only async-signal-safe calls and touches no heap.
//! - [`signal`]: masks, dispositions and the signal descriptor.
//! - [`schedule`]: whether this process runs at all beside busy ones.
//! - [`entry!`]: the start of a program without the preparations of Rust's runtime.
//! - [`title`]: the name and the command line of this process.
//! - [`alarm`]: a timer for a process that somebody may stop.
//! - [`child`]: what has become of the children of this process, with and without reaping.
//!
//! Non-goals: policy, parsing, anything that a safe crate already does.
//!
//! Invariant: no function here leaves a signal blocked, a child unreaped or a descriptor inheritable unless
//! its documentation says so.

pub mod alarm;
pub mod child;
pub mod descriptors;
pub mod entry;
pub mod fork;
#[cfg(feature = "hostile")]
pub mod hostile;
pub mod launch;
#[cfg(target_pointer_width = "64")]
pub mod memory;
pub mod peer;
pub mod schedule;
pub mod signal;
pub mod title;
#[cfg(feature = "hostile")]
pub mod trace;

pub use fork::{Forked, fork};

/// Ends this process by SIGKILL when a test asked for it at this place.
///
/// Compiled to nothing without debug assertions: every test build has crash points, no release has. A test names the place
/// in the variable `PENFOLD_CRASH_AT`; reading it here keeps the libraries free of test plumbing.
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {
        #[cfg(debug_assertions)]
        $crate::crash::here($name);
    };
}

#[cfg(debug_assertions)]
pub mod crash;
