//! The systemd unit of a process, and scopes: units that a program asks for, with a delegated cgroup.
//!
//! - [`CallerUnit`] — the unit in which a process runs, from its cgroup; no manager is asked.
//! - [`ask_service`] — how a service ends its processes, from its manager.
//! - [`take_scope`] — a scope for a process, from its manager.
//!
//! Invariants: no manager is believed, so [`take_scope`] returns a scope only if the kernel shows the process in its cgroup. D-Bus is
//! spoken by a child process that is killed at the deadline: the caller has no runtime and no threads. Without the feature `dbus` nobody is asked:
//! [`take_scope`] is an error that says so.

mod ask;
mod bounded_child;
mod caller;
#[cfg_attr(not(feature = "dbus"), path = "no_conversation.rs")]
mod conversation;
mod manager;
mod scope;
mod scope_request;
mod service;
mod trial;

pub use ask::ask_service;
pub use bounded_child::ChildError;
pub use caller::{CallerUnit, UnitKind};
pub use manager::{Buses, ServiceManager, is_booted};
pub use scope::{ScopeError, UnitScope, take_scope};
pub use scope_request::ScopeRequest;
pub use service::ServiceSettings;
pub use trial::try_scope;
