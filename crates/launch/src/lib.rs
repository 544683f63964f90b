//! From a request to a sandbox that runs.
//!
//! A [`SandboxSpec`](penfold_request::SandboxSpec) says what is asked for, a [`Caller`](caller::Caller) how the process that starts the sandbox takes
//! part, and [`Surroundings`](surroundings::Surroundings) what that process has: variables, directories, buses. Everything between these and a running
//! sandbox is here: checks, the profile, another user, the scope, the name, readiness, and what is kept for a restart.
//!
//! Non-goals: flags, texts for a terminal, exit codes, sandboxes on a server.
//!
//! Invariants:
//! - This crate reads no environment variable and no configuration, prints nothing and never exits.
//! - Every failure is a [`LaunchError`].

pub mod caller;
pub mod checks;
pub mod env_file;
mod error;
mod kept;
pub mod profile;
pub mod ready;
mod replace;
mod scope;
mod shared_memory;
pub mod spec;
mod start;
pub mod stop_channel;
pub mod surroundings;
pub mod user;

pub use error::{LaunchError, LaunchErrorKind, Remains};
pub use kept::FormerLife;
pub use start::{CheckedRequest, EndedSandbox, StartedSandbox, check_request, start_sandbox};
