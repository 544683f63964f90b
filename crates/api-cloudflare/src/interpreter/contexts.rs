//! Finds contexts by their labels.

use std::collections::BTreeMap;
use std::io;

use penfold_control::execs::{self, ExecView};
use penfold_server::execs::FoundExec;
use penfold_server::ids::Spot;
use penfold_state::Files;

use crate::api::Api;
use crate::error::{ApiError, Code};
use crate::ids::CONTEXT;
use crate::sessions::find;

use super::language::Language;

const LANGUAGE: &str = "language";
const DIRECTORY: &str = "cwd";
/// The label of a context that runs the code of requests without one.
const DEFAULT: &str = "default-context";

/// A context as it was observed.
#[derive(Debug, Clone)]
pub(super) struct Context {
    pub(super) id: String,
    pub(super) language: Language,
    /// The directory in which it was started.
    pub(super) directory: String,
    pub(super) exec: FoundExec,
}

impl Context {
    fn of(files: &Files, view: ExecView) -> Option<Context> {
        let label = |name: &str| view.labels.get(name).cloned();
        let id = label(CONTEXT)?;
        let language = Language::find(label(LANGUAGE).as_deref()).ok()?;
        let directory = label(DIRECTORY).unwrap_or_default();
        Some(Context { id, language, directory, exec: FoundExec { files: files.clone(), view } })
    }

    pub(super) fn number(&self) -> u32 {
        self.exec.view.number
    }

    pub(super) fn spot(&self) -> Spot {
        Spot { sandbox: self.exec.files.name().to_owned(), number: self.number() }
    }

    pub(super) fn is_default(&self) -> bool {
        self.exec.view.labels.contains_key(DEFAULT)
    }
}

/// Returns the labels of a context.
pub(super) fn labels_of(
    id: &str,
    language: Language,
    directory: &str,
    is_default: bool,
) -> BTreeMap<String, String> {
    let labels = [(CONTEXT, id), (LANGUAGE, language.name()), (DIRECTORY, directory)];
    let default = is_default.then_some((DEFAULT, ""));
    labels.into_iter().chain(default).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Returns the contexts of a sandbox that run, the oldest first.
///
/// # Errors
/// When the execs cannot be read.
pub(super) fn running_contexts(files: &Files) -> io::Result<Vec<Context>> {
    let running = execs::running_execs(files)?;
    Ok(running.into_iter().filter_map(|view| Context::of(files, view)).collect())
}

/// Returns the contexts of all sessions that run, the oldest first.
///
/// # Errors
/// When the state root cannot be read.
pub(super) fn all_running(api: &Api) -> Result<Vec<Context>, ApiError> {
    let mut found = Vec::new();
    for (_, files) in find::all_records(api.app.engine.scope())? {
        found.extend(find::list_in(&files, running_contexts)?);
    }
    found.sort_by_key(|context| context.exec.view.started_at_ms);
    Ok(found)
}

/// Finds a context, also one whose interpreter has ended.
///
/// # Errors
/// 404 when there is none with this id.
pub(super) fn find_context(api: &Api, id: &str) -> Result<Context, ApiError> {
    if let Some(spot) = api.contexts.get(id) {
        if let Some(context) = at(api, id, &spot)? {
            return Ok(context);
        }
        api.contexts.forget(id, &spot);
    }
    let mut found = Vec::new();
    for (_, files) in find::all_records(api.app.engine.scope())? {
        let views = find::list_in(&files, execs::list_execs)?;
        found.extend(views.into_iter().filter_map(|view| Context::of(&files, view)));
    }
    api.contexts.fill(found.iter().map(|context| (context.id.clone(), context.spot())));
    found.into_iter().find(|context| context.id == id).ok_or_else(|| {
        ApiError::new(Code::ContextNotFound, format!("Code context '{id}' not found")).with("contextId", id)
    })
}

fn at(api: &Api, id: &str, spot: &Spot) -> Result<Option<Context>, ApiError> {
    let Some(files) = find::open_record(api.app.engine.scope(), &spot.sandbox)? else { return Ok(None) };
    let view = execs::find_exec(&files, spot.number).ok().flatten();
    Ok(view.and_then(|view| Context::of(&files, view)).filter(|context| context.id == id))
}
