//! Claims an id for a process that starts.

use penfold_control::execs;
use penfold_state::error_chain;
use penfold_state::names::{self, Name, NameError};
use penfold_teardown::Resource as _;

use crate::cloudflare::api::Api;
use crate::cloudflare::claims::name_of;
use crate::cloudflare::error::{ApiError, Code};
use crate::cloudflare::ids::ProcessId;
use crate::cloudflare::sessions::find;

use super::labels::PROCESS;

/// The claim of an id for a process that starts: no other server can claim the id meanwhile. `None` for an id that this
/// server made.
#[derive(Debug)]
pub(super) struct Claim(Option<Name>);

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
        let root = api.app.engine.state_root();
        let mut name = names::claim(root, &name_of(id.as_str())).map_err(|error| match error {
            NameError::Taken { .. } => taken(id),
            error => failed(&error),
        })?;
        if let Some(last) = name.last_holder()
            && has_process(api, &last, id)?
        {
            return Err(taken(id));
        }
        if let Err(error) = name.give(sandbox) {
            let _ = name.release(false);
            return Err(failed(&error));
        }
        Ok(Claim(Some(name)))
    }

    /// Gives the id back after a start that failed. A start that was not answered may have been carried out.
    pub(super) fn withdraw(&mut self, api: &Api, id: &ProcessId, sandbox: &str) {
        if let Some(name) = &mut self.0
            && matches!(has_process(api, sandbox, id), Ok(false))
        {
            let _ = name.release(false);
        }
    }
}

pub(super) fn taken(id: &ProcessId) -> ApiError {
    let message = format!("a process with the id '{}' exists already", id.as_str());
    let error = ApiError::new(Code::ProcessError, message).status(axum::http::StatusCode::CONFLICT);
    error.with("processId", id.as_str())
}

fn has_process(api: &Api, sandbox: &str, id: &ProcessId) -> Result<bool, ApiError> {
    let Some(files) = find::record(api.app.engine.state_root(), sandbox)? else { return Ok(false) };
    let listed = execs::list(&files).map_err(|error| ApiError::internal(&error))?;
    Ok(listed.iter().any(|view| view.labels.get(PROCESS).is_some_and(|label| label == id.as_str())))
}
