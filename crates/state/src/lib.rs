//! One sandbox as a thing: what was asked for, its record on disk, what it owns, how it is recovered.
//!
//! - [`Spec`] — what somebody wants to be run.
//! - [`Id`] — the name of one sandbox, for ever.
//! - [`record`] — the record on disk: made first, gone last.
//! - [`Scratch`] — a directory that lives as long as its sandbox.
//! - [`events`] — what happened to them.
//! - [`recovery`] — ends what is left of a sandbox that nobody looks after.
//!
//! Invariant: a record whose lock is held belongs to a living supervisor; nobody else acts on it.

mod change_watch;
pub mod clear;
mod error_chain;
pub mod events;
pub mod evidence;
mod files;
mod id;
mod intent;
mod json;
pub mod lock;
pub mod log;
pub mod marked;
pub mod names;
mod nested;
pub mod outcome;
pub mod record;
pub mod recovery;
mod scratch;
mod spec;
pub mod state;
pub mod time;
pub mod wire;

pub use error_chain::{error_chain, sentence_chain};
pub use evidence::LockState;
pub use files::Files;
pub use id::Id;
pub use intent::{Detached, Intent};
pub use nested::{Inside, Nested, Notes};
pub use outcome::{Outcome, Report, StartFailure, Status, Totals};
pub use record::{Record, Registry, StateError};
pub use scratch::Scratch;
pub use spec::{Contain, Detach, ExecSpec, OwnerExit, Spec};
