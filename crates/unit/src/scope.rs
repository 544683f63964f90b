//! Scopes: units that a program asks for, with its own processes in them.

use std::path::PathBuf;
use std::time::Duration;

use penfold_cgroup::{LeafPlace, NoPlace};
use rustix::process::Pid;

use crate::bounded_child::{ChildError, in_child};
use crate::conversation;
use crate::manager::{Buses, ServiceManager};
use crate::scope_request::ScopeRequest;

/// A scope, seen with its process in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitScope {
    /// The directory of its cgroup.
    pub path: PathBuf,
    /// The text of its `cgroup.controllers`.
    pub controllers: String,
    /// Whether the user's manager, and so the scope, goes on after logout; `None` if that is not known or the scope is the
    /// system's.
    pub lingers: Option<bool>,
}

/// Why there is no scope.
#[derive(Debug, thiserror::Error)]
pub enum ScopeError {
    /// The manager cannot be reached, or has refused.
    #[error("no scope from {manager}: {reason}")]
    Refused {
        /// The manager.
        manager: ServiceManager,
        /// The reason, mostly in the words of the manager.
        reason: String,
    },
    /// The manager could not be asked in time, or not at all.
    #[error("no scope from {manager}")]
    Unanswered {
        /// The manager.
        manager: ServiceManager,
        /// The reason.
        source: ChildError,
    },
    /// The manager reports success, but the process is elsewhere.
    #[error("no scope from {manager}: it reports success, but the process is in `{cgroup}`")]
    NotSeen {
        /// The manager.
        manager: ServiceManager,
        /// The cgroup of the process.
        cgroup: String,
    },
    /// The cgroup of the process cannot be found.
    #[error("cannot find the cgroup of the scope")]
    NoPlace(#[from] NoPlace),
}

/// Asks a manager for a scope with this process in it, and waits until the kernel shows the process there.
///
/// `process` is a child of this process that has not been reaped, so that its pid names no other process.
///
/// # Errors
/// A manager that did not answer in time may still move the process later.
pub fn take_scope(
    request: &ScopeRequest<'_>,
    buses: &Buses,
    process: Pid,
    limit: Duration,
) -> Result<UnitScope, ScopeError> {
    let manager = request.manager;
    let raw = process.as_raw_nonzero().get().unsigned_abs();
    let asked =
        in_child(limit, || conversation::run_conversation(conversation::make_scope(buses, request, raw)));
    let lingers = asked
        .map_err(|source| ScopeError::Unanswered { manager, source })?
        .map_err(|reason| ScopeError::Refused { manager, reason })?;
    let read = |path: String| {
        std::fs::read(&path).map_err(|source| NoPlace::Io { path: PathBuf::from(path), source })
    };
    let cgroup = read(format!("/proc/{raw}/cgroup"))?;
    let located = LeafPlace::locate(&read("/proc/self/mountinfo".to_owned())?, &cgroup)?;
    if located.path.file_name().is_none_or(|last| last != request.name) {
        return Err(ScopeError::NotSeen { manager, cgroup: located.cgroup });
    }
    let controllers = std::fs::read_to_string(located.path.join("cgroup.controllers")).unwrap_or_default();
    Ok(UnitScope { path: located.path, controllers, lingers })
}
