//! Finds sandboxes, says how they are, and ends them: for commands, and for servers.
//!
//! - [`resolve`] — from a word to a sandbox.
//! - [`view`] — how a sandbox is, from its record, its lock and what else speaks of it.
//! - [`end()`] — stops or kills many sandboxes at once; [`wait()`], [`forget()`], [`put_away()`].
//! - [`Client`] — one connection to a supervisor.
//! - [`leaks`] — what is left on the host that nobody looks after.
//! - [`host_checks`] — what the host can do, and what that means for the guarantee.
//!
//! Invariants: nothing that a supervisor says is proof. "Gone" is what was seen: a free lock, a report, no leaf; and
//! where no supervisor was there to see the end, a look over the host. Members are ended by the one teardown. A process
//! of ours is only killed when it is seen to hold the lock of that very sandbox.

mod client;
mod end;
mod forget;
pub mod host_checks;
pub mod leaks;
pub mod resolve;
pub mod view;
mod wait;

pub use client::{ANSWER, Client, ClientError, at_once};
pub use end::{Fate, How, Limits, Progress, end};
pub use forget::{ForgetError, forget, put_away};
pub use resolve::{Candidate, Finder, Known, ResolveError};
pub use view::View;
pub use wait::{End, wait};
