//! Tries to get a scope, as `penfold run -d` does in a login session.

use std::time::{Duration, Instant};

use penfold_doctor::host_checks::ScopeTrial;
use penfold_state::{Id, REMOVAL_LIMIT, ScopeDir, error_chain};
use penfold_unit::{ScopeRequest, ServiceManager};

use crate::surroundings;

/// The time for the scope.
const LIMIT: Duration = Duration::from_secs(2);

/// Takes a scope and gives it back; `None` where systemd does not run, or inside a sandbox, which gets none.
pub(super) fn trial() -> Option<ScopeTrial> {
    if !penfold_unit::is_booted() || !surroundings::outer_sandboxes().is_empty() {
        return None;
    }
    let manager =
        if rustix::process::geteuid().is_root() { ServiceManager::System } else { ServiceManager::User };
    let id = Id::new().ok()?.short();
    let request = ScopeRequest {
        manager,
        name: &ScopeDir::unit(&id, 1),
        description: "penfold doctor",
        slice: None,
        stop_timeout: LIMIT,
    };
    let trial = ScopeTrial {
        manager: manager.to_string(),
        refused: None,
        controllers: String::new(),
        lingers: None,
        left: None,
    };
    Some(match penfold_unit::try_scope(&request, &surroundings::buses(), LIMIT) {
        Ok(scope) => {
            let left = ScopeDir::of(&scope.path, &id)
                .filter(|scope| scope.wait_gone(Instant::now() + REMOVAL_LIMIT).is_err());
            ScopeTrial {
                controllers: scope.controllers,
                lingers: scope.lingers,
                left: left.map(|scope| scope.path().to_owned()),
                ..trial
            }
        }
        Err(error) => ScopeTrial { refused: Some(error_chain(&error)), ..trial },
    })
}
