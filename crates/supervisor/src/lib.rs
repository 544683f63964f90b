//! The small processes that look after one sandbox.
//!
//! ```text
//!  front    who called `start`; subreaper; passes signals on, waits for the outcome
//!    └─ inner    "the supervisor"; subreaper; starts the leader, waits, ends the sandbox
//!         └─ leader    the command, in the caller's session and process group
//! ```
//! Front and supervisor watch each other: whichever is killed, the other ends the sandbox. The supervisor lives in a
//! session of its own, so that no signal to the caller's process group or from its terminal reaches it.
//!
//! A front that has children of its own, or is the init of a container, cannot tell orphans of the sandbox from
//! others; then an *outer* process stands between the two and plays the front's part as the second subreaper.
//!
//! - [`start()`] — from a [`Spec`](penfold_state::Spec) to a running sandbox and a [`Front`] for it.
//! - [`adopt()`] — the same around a tree that runs already.
//! - [`Front`] — the caller's side.
//!
//! Invariant: every resource is made *before* the supervisor is forked, so that each of the two can end the sandbox
//! alone.

use penfold_state::{outcome, wire};

mod adopt;
mod control_server;
mod detached_parts;
mod environment;
mod exec;
mod execs;
mod exit_record;
mod front;
mod host;
mod immediate_kill;
mod inner;
mod launch;
mod leader_cell;
mod lease;
mod nested;
mod outer;
mod output;
mod pidns;
mod pidns_protocol;
mod policy;
mod poll;
mod prepared;
mod report_file;
mod setup;
mod signals;
mod start;
mod start_error;
mod supervised;
mod takeover;
mod terminal;

pub use adopt::adopt;
pub use front::{Detached, Front, FrontError, Progress};
pub use start::start;
pub use start_error::StartError;
pub use terminal::modes::Modes;
pub use terminal::open as open_terminal;
