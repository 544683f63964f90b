//! Finds terminals by their labels.

use penfold_control::execs::{self, ExecView};
use penfold_server::execs::FoundExec;
use penfold_server::ids::Spot;
use penfold_state::Files;
use serde_json::{Value, json};

use crate::api::Api;
use crate::error::{ApiError, Code};
use crate::ids::TERMINAL;
use crate::log_events::ended_state;
use crate::processes;
use crate::sessions::find;

/// A terminal as it was observed.
#[derive(Debug, Clone)]
pub(super) struct Terminal {
    pub(super) id: String,
    pub(super) exec: FoundExec,
}

impl Terminal {
    fn of(files: &Files, view: ExecView) -> Option<Terminal> {
        let id = view.labels.get(TERMINAL)?.clone();
        Some(Terminal { id, exec: FoundExec { files: files.clone(), view } })
    }

    pub(super) fn number(&self) -> u32 {
        self.exec.view.number
    }

    fn spot(&self) -> Spot {
        Spot { sandbox: self.exec.files.name().to_owned(), number: self.number() }
    }

    /// Describes the terminal.
    pub(super) fn describe(&self) -> Value {
        let view = &self.exec.view;
        let mut terminal = json!({
            "id": self.id,
            "pid": view.leader_pid,
            "command": processes::words_of(view),
            "status": "running",
        });
        if let Some(fields) = terminal.as_object_mut() {
            fields.extend(processes::directory_of(view).map(|cwd| ("cwd".to_owned(), cwd.into())));
            if let (false, Value::Object(mut ended)) =
                (self.exec.is_running(), ended_state(view.exit, view.cause))
            {
                fields.extend(ended.remove("state").map(|state| ("status".to_owned(), state)));
                fields.extend(ended);
            }
        }
        terminal
    }
}

/// Observes all terminals, the oldest first.
///
/// # Errors
/// When the state root cannot be read.
pub(super) fn observe_all(api: &Api) -> Result<Vec<Terminal>, ApiError> {
    let mut found = Vec::new();
    for (_, files) in find::all_records(api.app.engine.scope())? {
        let views = find::list_in(&files, execs::list_execs)?;
        found.extend(views.into_iter().filter_map(|view| Terminal::of(&files, view)));
    }
    found.sort_by_key(|terminal| terminal.exec.view.started_at_ms);
    Ok(found)
}

/// Observes one terminal, also one whose command has ended.
///
/// # Errors
/// 404 when there is none with this id.
pub(super) fn observe_terminal(api: &Api, id: &str) -> Result<Terminal, ApiError> {
    let terminal = search(api, id)?;
    // A client that asks for a terminal is not gone.
    drop(api.leases.begin_use(&terminal.exec.files));
    Ok(terminal)
}

fn search(api: &Api, id: &str) -> Result<Terminal, ApiError> {
    if let Some(spot) = api.terminals.get(id) {
        if let Some(terminal) = at(api, id, &spot)? {
            return Ok(terminal);
        }
        api.terminals.forget(id, &spot);
    }
    let found = observe_all(api)?;
    api.terminals.fill(found.iter().map(|terminal| (terminal.id.clone(), terminal.spot())));
    found.into_iter().find(|terminal| terminal.id == id).ok_or_else(|| missing_terminal(id))
}

fn at(api: &Api, id: &str, spot: &Spot) -> Result<Option<Terminal>, ApiError> {
    let Some(files) = find::open_record(api.app.engine.scope(), &spot.sandbox)? else { return Ok(None) };
    let view = execs::find_exec(&files, spot.number).ok().flatten();
    Ok(view.and_then(|view| Terminal::of(&files, view)).filter(|terminal| terminal.id == id))
}

pub(super) fn missing_terminal(id: &str) -> ApiError {
    ApiError::new(Code::TerminalNotFound, format!("Terminal '{id}' not found")).with("terminalId", id)
}
