//! Tries to get a scope, with a process that does nothing.

use std::time::Duration;

use penfold_sys::{ForkSide, fork};
use rustix::event::{Timespec, poll};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::bounded_child::{ChildError, end_child};
use crate::manager::Buses;
use crate::scope::{ScopeError, UnitScope, take_scope};
use crate::scope_request::ScopeRequest;

/// Asks for a scope, and ends the process in it. The manager then removes the scope.
///
/// # Errors
/// As [`take_scope`].
pub fn try_scope(
    request: &ScopeRequest<'_>,
    buses: &Buses,
    limit: Duration,
) -> Result<UnitScope, ScopeError> {
    let manager = request.manager;
    let forked = fork().map_err(|source| ScopeError::Unanswered {
        manager,
        source: ChildError::System { act: "fork", source },
    })?;
    match forked {
        ForkSide::Child => {
            let _ = set_parent_process_death_signal(Some(Signal::KILL));
            let _ = poll(&mut [], Timespec::try_from(limit * 2).ok().as_ref());
            penfold_sys::fork::exit_now(0)
        }
        ForkSide::Parent(process) => {
            let taken = take_scope(request, buses, process, limit);
            end_child(process);
            taken
        }
    }
}
