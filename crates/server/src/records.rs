//! The records of sandboxes: by the words and ids of clients, and by the labels that a dialect has given them.

use std::io;

use penfold_control::{ResolveError, Resolver, SandboxRef, Scope};
use penfold_state::intent::Intent;
use penfold_state::log::{LogEntry, LogReader};
use penfold_state::record::{Registry, StateError};
use penfold_state::{Files, error_chain};

/// Why there is no record for a word of a client.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// There is no such sandbox, or the word is ambiguous.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The sandbox runs without a record.
    #[error("sandbox {id} has no record")]
    Missing {
        /// The id of the sandbox.
        id: String,
    },
}

/// Why the state root cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadRootError {
    /// A record, or the root itself, cannot be opened.
    #[error(transparent)]
    Record(#[from] StateError),
    /// The root cannot be listed.
    #[error(transparent)]
    List(#[from] io::Error),
}

/// Finds a sandbox that the callers reach by its id, a unique prefix of the id, or its name.
///
/// # Errors
/// When there is no such sandbox, or the word is ambiguous.
pub fn find_sandbox(scope: &Scope, word: &str) -> Result<SandboxRef, ResolveError> {
    Resolver::within(scope).resolve(word)
}

/// Finds the record of a sandbox that the callers reach by its id, a unique prefix of the id, or its name.
///
/// # Errors
/// When there is no such sandbox, or it has no record.
pub fn find_record(scope: &Scope, word: &str) -> Result<Files, RecordError> {
    let known = find_sandbox(scope, word)?;
    known.record.ok_or(RecordError::Missing { id: known.id })
}

/// Opens the record of the sandbox with this whole id, if the callers reach it.
///
/// # Errors
/// When the state root cannot be read.
pub fn open_record(scope: &Scope, id: &str) -> Result<Option<Files>, StateError> {
    let found = Registry::open_existing(scope.root())?.map_or(Ok(None), |registry| registry.look(id))?;
    Ok(found.filter(|files| is_reached(scope, files)))
}

/// Tells whether what is left of the sandbox with this whole id is the callers'.
pub fn is_own_remainder(scope: &Scope, id: &str) -> bool {
    let registry = Registry::open_existing(scope.root()).ok().flatten();
    let files = registry.and_then(|registry| registry.look(id).ok().flatten());
    files.map_or(scope.has_unowned(), |files| is_reached(scope, &files))
}

fn is_reached(scope: &Scope, files: &Files) -> bool {
    scope.is_whole() || scope.has(files.intent().ok().as_ref())
}

/// Returns the records of the callers' own sandboxes that `choose` selects by what their sandboxes were started with, living or not. Records that cannot be
/// read are left out.
///
/// # Errors
/// When the state root cannot be read.
pub fn choose_records<T>(
    scope: &Scope,
    choose: impl Fn(&Intent) -> Option<T>,
) -> Result<Vec<(T, Files)>, ReadRootError> {
    let Some(registry) = Registry::open_existing(scope.root())? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for id in registry.names()? {
        match registry.look(&id) {
            Ok(Some(files)) => {
                // A record without an intent is being made or removed.
                let intent = files.intent().ok().filter(|intent| scope.is_own(intent.tenant()));
                if let Some(chosen) = intent.and_then(|intent| choose(&intent)) {
                    found.push((chosen, files));
                }
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(sandbox = id, error = error_chain(&error), "cannot read a record"),
        }
    }
    Ok(found)
}

/// Reads a log to its present end as text, for people.
pub fn last_words(mut log: LogReader) -> String {
    let mut said = Vec::new();
    while let Ok(Some(entry)) = log.next_entry() {
        if let LogEntry::Data { bytes, .. } = entry {
            said.extend_from_slice(bytes);
        }
    }
    String::from_utf8_lossy(&said).trim().to_owned()
}
