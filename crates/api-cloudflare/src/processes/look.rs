//! Finds processes by their labels.

use std::cmp::Ordering;

use penfold_control::execs::{self, ExecView};
use penfold_server::execs::FoundExec;
use penfold_server::ids::Spot;
use penfold_state::Files;

use crate::api::Api;
use crate::error::{ApiError, Code};
use crate::ids::{PROCESS, ProcessId};
use crate::sessions::find;

use super::status::observed_status;

/// A process as it was observed.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) id: String,
    pub(super) session: String,
    pub(super) exec: FoundExec,
}

impl Seen {
    pub(super) fn is_running(&self) -> bool {
        self.exec.is_running()
    }

    pub(super) fn number(&self) -> u32 {
        self.exec.view.number
    }
}

/// Observes all processes, the oldest first.
///
/// # Errors
/// When the state root cannot be read.
pub(super) fn observe_all(api: &Api) -> Result<Vec<Seen>, ApiError> {
    all_of(api, execs::list_execs)
}

/// Observes the running processes, the oldest first.
///
/// # Errors
/// When the state root cannot be read.
pub(super) fn observe_running(api: &Api) -> Result<Vec<Seen>, ApiError> {
    all_of(api, execs::running_execs)
}

fn all_of(api: &Api, list: impl Fn(&Files) -> std::io::Result<Vec<ExecView>>) -> Result<Vec<Seen>, ApiError> {
    let mut found = Vec::new();
    for (session, files) in find::all_records(api.app.engine.scope())? {
        for view in find::list_in(&files, &list)? {
            if let Some(id) = view.labels.get(PROCESS).cloned() {
                found.push(Seen {
                    id,
                    session: session.as_str().to_owned(),
                    exec: FoundExec { files: files.clone(), view },
                });
            }
        }
    }
    found.sort_by(by_age);
    Ok(found)
}

/// Orders processes by age, the oldest first.
pub(super) fn by_age(one: &Seen, other: &Seen) -> Ordering {
    (one.exec.view.started_at_ms, &one.id).cmp(&(other.exec.view.started_at_ms, &other.id))
}

/// Reads all processes from the disk once, so that no id is given twice.
///
/// # Errors
/// As [`observe_all`].
pub(super) fn read_all(api: &Api) -> Result<(), ApiError> {
    if api.places.is_complete() { Ok(()) } else { refill(api).map(drop) }
}

fn refill(api: &Api) -> Result<Vec<Seen>, ApiError> {
    let all = observe_all(api)?;
    let spot = |seen: &Seen| Spot { sandbox: seen.exec.files.name().to_owned(), number: seen.number() };
    api.places.fill(all.iter().map(|seen| (seen.id.clone(), spot(seen))));
    Ok(all)
}

/// Observes one process.
///
/// # Errors
/// 404 when there is none with this id.
pub(super) fn observe_process(api: &Api, id: &str) -> Result<Seen, ApiError> {
    let seen = search_process(api, id)?;
    // A client that asks for a process is not gone.
    drop(api.leases.begin_use(&seen.exec.files));
    Ok(seen)
}

fn search_process(api: &Api, id: &str) -> Result<Seen, ApiError> {
    if let Some(spot) = api.places.get(id) {
        if let Some(seen) = at(api, id, &spot)? {
            return Ok(seen);
        }
        api.places.forget(id, &spot);
    }
    // An id that cannot exist needs no search.
    let found = if ProcessId::new(Some(id)).is_ok() { refill(api)? } else { Vec::new() };
    found.into_iter().find(|seen| seen.id == id).ok_or_else(|| missing_process(id))
}

/// A process that is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watched {
    /// It has not ended.
    Runs,
    /// It has ended with this code.
    Ended(i32),
}

/// Looks whether a process has ended.
///
/// # Errors
/// As [`observe_process`].
pub(crate) fn watched_process(api: &Api, id: &str) -> Result<Watched, ApiError> {
    let seen = observe_process(api, id)?;
    Ok(observed_status(&seen.exec.view).code.map_or(Watched::Runs, Watched::Ended))
}

fn at(api: &Api, id: &str, spot: &Spot) -> Result<Option<Seen>, ApiError> {
    let Some(files) = find::open_record(api.app.engine.scope(), &spot.sandbox)? else { return Ok(None) };
    let Ok(Some(view)) = execs::find_exec(&files, spot.number) else { return Ok(None) };
    if view.labels.get(PROCESS).is_none_or(|label| label != id) {
        return Ok(None);
    }
    let session = files.intent().ok().and_then(|intent| intent.labels.get(find::SESSION).cloned());
    Ok(Some(Seen {
        id: id.to_owned(),
        session: session.unwrap_or_default(),
        exec: FoundExec { files, view },
    }))
}

pub(super) fn missing_process(id: &str) -> ApiError {
    ApiError::new(Code::ProcessNotFound, format!("Process '{id}' not found")).with("processId", id)
}
