//! The request for a scope.

use std::time::Duration;

use crate::manager::ServiceManager;

/// A scope to be asked for.
#[derive(Debug, Clone, Copy)]
pub struct ScopeRequest<'a> {
    /// The manager.
    pub manager: ServiceManager,
    /// The name of the unit, with `.scope`.
    pub name: &'a str,
    /// The description, for people.
    pub description: &'a str,
    /// The slice, if not the manager's usual one.
    pub slice: Option<&'a str>,
    /// The time from the manager's polite signal to SIGKILL when the scope is stopped.
    pub stop_timeout: Duration,
}
