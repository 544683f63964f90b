//! The small processes that look after one sandbox.
//!
//! ```text
//!  launcher    who called `start`; subreaper; passes signals on, waits for the outcome
//!    └─ supervisor  subreaper; starts the leader, waits, ends the sandbox
//!         └─ leader    the command, in the caller's session and process group
//! ```
//! Launcher and supervisor watch each other: whichever is killed, the other ends the sandbox. The supervisor lives in a
//! session of its own, so that no signal to the caller's process group or from its terminal reaches it.
//!
//! A launcher that has children of its own, or is the init of a container, cannot tell orphans of the sandbox from
//! others; then a *standby* stands between the two and plays the launcher's part as the second subreaper.
//!
//! - [`start()`] — from a [`Spec`](penfold_state::Spec) to a running sandbox and a [`Launcher`] for it.
//! - [`adopt()`] — the same around a tree that runs already.
//! - [`Launcher`] — the caller's side.
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
mod host;
mod immediate_kill;
mod launch;
mod launcher;
mod leader_cell;
mod lease;
mod nested;
mod output;
mod pidns;
mod pidns_protocol;
mod policy;
mod poll;
mod prepared;
mod report_file;
mod setup;
mod signals;
mod standby;
mod start;
mod start_error;
mod supervised;
mod supervisor;
mod takeover;
mod terminal;

pub use adopt::adopt;
pub use launcher::{Detached, Launcher, LauncherError, Progress};
pub use start::start;
pub use start_error::StartError;
pub use terminal::modes::Modes;
pub use terminal::open as open_terminal;
