//! Starts, supervises and ends one sandbox: its launcher, supervisor and standby.
//!
//! ```text
//!  launcher    the process that called `start`; subreaper; forwards signals, waits for the outcome
//!    └─ supervisor  subreaper; starts the leader, waits, ends the sandbox
//!         └─ leader    the command, in the caller's session and process group
//! ```
//! Launcher and supervisor hold each other's pidfd: whichever is killed, the other ends the sandbox. The supervisor has
//! a session of its own. No signal to the caller's process group or from the caller's terminal reaches the supervisor.
//!
//! A launcher that has other children, or is the init of a container, cannot tell orphans of the sandbox from other
//! processes. In this case a *standby* runs between the two and is the second subreaper instead of the launcher.
//!
//! - [`start_sandbox()`] — starts a sandbox from a [`Spec`](penfold_state::Spec) and returns a [`Launcher`].
//! - [`start_in_scope()`] — the same in a scope that a service manager makes.
//! - [`adopt_process_tree()`] — makes a sandbox of a tree that runs already.
//! - [`Launcher`] — the caller's side of a running sandbox.
//!
//! Invariant: every resource is created *before* the supervisor is forked. Either process can therefore end the sandbox
//! alone.

use penfold_state::{outcome, wire};

mod adopt;
mod at_limit;
mod control_server;
mod detached_parts;
mod end_cell;
mod ended_execs;
mod engine_clients;
mod environment;
mod event_loop;
mod exec;
mod exec_program;
mod exec_request;
mod exec_stdio;
mod execs;
mod exit_record;
mod identity;
mod immediate_kill;
mod ipc;
mod jail;
mod launch;
mod launcher;
mod leader_cell;
mod lease;
mod left_behind;
mod left_objects;
mod nested;
mod output;
mod pidns;
mod pidns_protocol;
mod policy;
mod poll;
mod recorded_exec;
mod report_file;
mod restart;
mod sandbox_parts;
mod scope;
mod setup;
mod signals;
mod standby;
mod start;
mod start_error;
mod supervision;
mod supervisor;
mod takeover;
mod terminal;

pub use adopt::adopt_process_tree;
pub use launcher::{DetachedStart, Launcher, LauncherError, LauncherProgress};
pub use scope::ScopeEntry;
pub use start::{start_in_scope, start_sandbox};
pub use start_error::StartError;
pub use terminal::modes::Modes;
pub use terminal::open_pty;
pub use terminal::own_group::{lead_foreground_group, open_for_shell};
