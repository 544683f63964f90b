//! In place of the D-Bus conversations, where the feature `dbus` is off: nobody is asked, and the reason is told.

use crate::manager::{Buses, ServiceManager};
use crate::scope_request::ScopeRequest;
use crate::service::ServiceSettings;

const REASON: &str = "penfold-init speaks no D-Bus; the whole penfold does";

pub(crate) fn run_conversation<T>(said: Result<T, String>) -> Result<T, String> {
    said
}

pub(crate) fn make_scope(_: &Buses, _: &ScopeRequest<'_>, _process: u32) -> Result<Option<bool>, String> {
    Err(REASON.to_owned())
}

pub(crate) fn read_service(_: &Buses, _: ServiceManager, _unit: &str) -> Result<ServiceSettings, String> {
    Err(REASON.to_owned())
}
