//! Finds sandboxes, shows their status, and ends them: for commands, and for servers.
//!
//! - [`resolve`] — finds a sandbox by its id or name.
//! - [`Scope`] — the sandboxes that a caller may know of.
//! - [`view`] — the status of a sandbox, from its record, its lock and other evidence.
//! - [`usage`] — the CPU time, the memory and the processes of a sandbox.
//! - [`end_sandboxes()`] — stops or kills many sandboxes at once; [`wait_for_sandboxes()`], [`forget_sandbox()`], [`remove_record()`].
//! - [`pause_sandbox()`], [`unpause_sandbox()`] — freeze the members of a sandbox, and let them go on.
//! - [`extend_lease()`] — renews the lease of a detached sandbox.
//! - [`start_detached()`] — starts a sandbox from a process with threads.
//! - [`all_users`] — the state roots of all users, for root.
//! - [`descent`] — the sandbox to which a process belongs, by its ancestors.
//! - [`ports`] — who listens on TCP ports, in sandboxes and outside.
//! - [`execs`] — recorded execs: commands in a running sandbox whose output and end stay on disk.
//! - [`SupervisorClient`] — a connection to a supervisor.
//! - [`watch_sandboxes()`] — has sandboxes recovered that lose all their supervisors.
//!
//! Invariants:
//! - No message of a supervisor is proof. "Gone" needs an observation: a free lock, a report, no leaf. If no supervisor
//!   saw the end, a search of the host is needed as well.
//! - Members are ended by the one teardown.
//! - A penfold process is killed only if it is seen to hold the lock of that very sandbox.

pub mod all_users;
mod client;
pub mod descent;
mod end;
pub mod execs;
mod forget;
mod holders;
mod lease;
mod pause;
pub mod ports;
pub mod resolve;
mod scope;
mod start;
mod threads;
mod timeout;
pub mod usage;
pub mod view;
mod wait;
mod watch;

pub use client::{ANSWER, SupervisorClient, SupervisorClientError, ended_or, has_just_ended};
pub use end::{EndLimits, EndMethod, EndProgress, StopResult, describe_remains, end_sandboxes};
pub use forget::{ForgetError, forget_sandbox, remove_record};
pub use holders::{is_supervised, supervised_processes};
pub use lease::{LeaseError, extend_lease};
pub use pause::{PauseError, pause_sandbox, unpause_sandbox};
pub use resolve::{Candidate, ResolveError, Resolver, SandboxRef};
pub use scope::Scope;
pub use start::{START_REQUEST, StartError, start_detached};
pub use threads::{at_once, on_all_processors};
pub use usage::{CpuRates, Meter, SandboxUsage};
pub use view::SandboxView;
pub use wait::{SandboxEnd, wait_for_sandboxes};
pub use watch::{WatchEvent, WatchSettings, watch_sandboxes};
