//! Asks how a service ends its processes.

use std::time::Duration;

use crate::bounded_child::{ChildError, in_child};
use crate::conversation;
use crate::manager::{Buses, ServiceManager};
use crate::service::ServiceSettings;

/// Asks a manager how a service ends its processes; `None` if it does not say so in time.
///
/// # Errors
/// When no process could be started that asks.
pub fn ask_service(
    buses: &Buses,
    manager: ServiceManager,
    unit: &str,
    limit: Duration,
) -> Result<Option<ServiceSettings>, ChildError> {
    match in_child(limit, || conversation::run_conversation(conversation::read_service(buses, manager, unit)))
    {
        Ok(service) => Ok(service.ok()),
        Err(ChildError::Late { .. } | ChildError::Died) => Ok(None),
        Err(error) => Err(error),
    }
}
