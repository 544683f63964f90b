//! Asks how a service ends its processes.

use std::time::Duration;

use crate::bounded_child::{ChildError, in_child};
use crate::conversation;
use crate::manager::{Buses, Manager};
use crate::service::Service;

/// Asks a manager how a service ends its processes; `None` if it does not say so in time.
///
/// # Errors
/// When no process could be started that asks.
pub fn ask_service(
    buses: &Buses,
    manager: Manager,
    unit: &str,
    limit: Duration,
) -> Result<Option<Service>, ChildError> {
    match in_child(limit, || conversation::run(conversation::read_service(buses, manager, unit))) {
        Ok(service) => Ok(service.ok()),
        Err(ChildError::Late { .. } | ChildError::Died) => Ok(None),
        Err(error) => Err(error),
    }
}
