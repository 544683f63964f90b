//! The systemd unit of a process, and scopes: units that a program asks for, with a delegated cgroup.
//!
//! - [`Caller`] — the unit in which a process runs, from its cgroup; no manager is asked.
//! - [`ask_service`] — how a service ends its processes, from its manager.
//! - [`take`] — a scope for a process, from its manager.
//!
//! Invariants: no manager is believed, so [`take`] returns a scope only if the kernel shows the process in its cgroup. D-Bus is
//! spoken by a child process that is killed at the deadline: the caller has no runtime and no threads.

mod ask;
mod bounded_child;
mod caller;
mod conversation;
mod manager;
mod scope;
mod scope_request;
mod service;
mod trial;

pub use ask::ask_service;
pub use bounded_child::ChildError;
pub use caller::{Caller, UnitKind};
pub use manager::{Buses, Manager, is_booted};
pub use scope::{Scope, ScopeError, take};
pub use scope_request::ScopeRequest;
pub use service::Service;
pub use trial::try_scope;
