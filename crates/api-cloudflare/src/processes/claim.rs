//! Claims an id for a process that starts.

use axum::http::StatusCode;
use penfold_control::execs;
use penfold_server::ids::{ClaimError, IdClaim};
use penfold_state::error_chain;

use crate::api::Api;
use crate::claims::name_of;
use crate::error::{ApiError, Code};
use crate::ids::{PROCESS, ProcessId};
use crate::sessions::find;

/// The claim of an id for a process that starts: no other server can claim the id meanwhile. `None` for an id that this
/// server made.
#[derive(Debug)]
pub(super) struct Claim(Option<IdClaim>);

impl Claim {
    /// Claims an id for a process in this sandbox.
    ///
    /// # Errors
    /// 409 when a process has the id, or another server starts one.
    pub(super) fn of(api: &Api, id: &ProcessId, sandbox: &str) -> Result<Claim, ApiError> {
        if !id.is_chosen() {
            return Ok(Claim(None));
        }
        let failed = |error: &dyn std::error::Error| {
            let why = error_chain(error);
            ApiError::new(Code::StreamStartError.or_no_space(&why), why).with("processId", id.as_str())
        };
        let is_used = |last: &str| has_process(api, last, id);
        let claimed = IdClaim::of(api.app.engine.scope(), &name_of(id.as_str()), sandbox, is_used);
        claimed.map(|claim| Claim(Some(claim))).map_err(|error| match error {
            ClaimError::Taken => taken_error(id),
            ClaimError::Look(error) => error,
            ClaimError::Name(error) => failed(&error),
            ClaimError::Write(error) => failed(&error),
        })
    }

    /// Gives the id back after a start that failed. A start that was not answered may have been carried out.
    pub(super) fn withdraw(&mut self, api: &Api, id: &ProcessId, sandbox: &str) {
        if let Some(claim) = self.0.take_if(|_| matches!(has_process(api, sandbox, id), Ok(false))) {
            claim.withdraw();
        }
    }
}

/// The error of an id that a process has.
pub(super) fn taken_error(id: &ProcessId) -> ApiError {
    let message = format!("a process with the id '{}' exists already", id.as_str());
    ApiError::new(Code::ProcessError, message).status(StatusCode::CONFLICT).with("processId", id.as_str())
}

fn has_process(api: &Api, sandbox: &str, id: &ProcessId) -> Result<bool, ApiError> {
    let Some(files) = find::open_record(api.app.engine.scope(), sandbox)? else { return Ok(false) };
    let listed = execs::list_execs(&files).map_err(|error| ApiError::internal(&error))?;
    Ok(listed.iter().any(|view| view.labels.get(PROCESS).is_some_and(|label| label == id.as_str())))
}
