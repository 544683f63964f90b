//! The OCI runtime of penfold: in front of a delegate (runc, crun), so that a container that an engine has deleted is gone.
//!
//! - [`CommandWords`] — the command line of an OCI runtime, as far as penfold needs it.
//! - [`Delegate`] — the runtime that does the work.
//! - [`ContainerNote`] — the file that says which containers were created through penfold.
//! - [`Runtime`] — `create`, `start`, `run`, `exec`, `kill` and `delete`; everything else is passed on.
//! - [`noted_containers`] — the containers with a note; [`end_lost`] ends what is left of one that its delegate does not know any more, or whose
//!   `delete` was refused; [`complete_refused`] does so once no process of it lives.
//! - [`log_line`] — a message as engines read it.
//!
//! **Non-goals.** No container is made here: no namespace, no mount, no cgroup.
//!
//! **Invariants.**
//! - The delegate decides whether a container exists, this crate whether it is gone.
//! - Only the container's own cgroups are looked at: never a root, never a parent; and where it has the pids of the host, its own mount namespace.
//! - `delete` without `--force` kills nothing. A cgroup that cannot be read is not empty.
//! - `kill` and `delete` answer within [`LIMIT`]: containerd gives up after 10 s. For Docker and Podman within [`SHORT_LIMIT`].
//! - The note is written before the delegate starts, and removed last.
//! - An end needs no space: a note that cannot be written or removed stops no `delete`.
//! - No lock is taken: a process that is stopped holds up no other.

mod cgroups;
mod config;
mod containers;
mod delegate;
mod exec;
mod follower;
mod log;
mod members;
mod mounts;
mod news;
mod note;
mod refused;
mod runtime;
mod shim;
mod words;

pub use containers::{NotedContainer, complete_refused, end_lost, have_refused, noted_containers};
pub use delegate::{Delegate, DelegateEnvironment, NoDelegate};
pub use log::{LogLevel, append_log, log_line};
pub use mounts::MountNamespace;
pub use note::{Annotations, ContainerNote, ContainerNotes, Engine};
pub use refused::VerbError;
pub use runtime::{LIMIT, NextStep, Runtime, SHORT_LIMIT};
pub use words::CommandWords;
