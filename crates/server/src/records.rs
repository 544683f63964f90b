//! The records of sandboxes: by the words and ids of clients, and by the labels that a dialect has given them.

use std::io;

use penfold_control::{ResolveError, Resolver, SandboxRef, Scope};
use penfold_state::intent::Intent;
use penfold_state::log::{LogEntry, LogReader, Stream};
use penfold_state::record::{Registry, StateError};
use penfold_state::{Files, error_chain, lacks_descriptors};

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
    Ok(found.filter(|files| scope.has_record(files)))
}

/// Tells whether what is left of the sandbox with this whole id is the callers'.
pub fn is_own_remainder(scope: &Scope, id: &str) -> bool {
    let registry = Registry::open_existing(scope.root()).ok().flatten();
    let files = registry.and_then(|registry| registry.look(id).ok().flatten());
    files.map_or(scope.has_unowned(), |files| scope.has_record(&files))
}

/// Returns the records of the callers' own sandboxes that `choose` selects by what these were started with, living or not. Records
/// that cannot be read are left out.
///
/// # Errors
/// When the state root cannot be read, or there are no descriptors for all records.
pub fn choose_records<T>(
    scope: &Scope,
    choose: impl Fn(&Intent) -> Option<T>,
) -> Result<Vec<(T, Files)>, ReadRootError> {
    let Some(registry) = Registry::open_existing(scope.root())? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for id in registry.names()? {
        match registry.look(&id) {
            Ok(Some(files)) => {
                let intent = match files.intent() {
                    Err(error) if lacks_descriptors(&error) => return Err(error.into()),
                    // A record without an intent is being made or removed.
                    intent => intent.ok().filter(|intent| scope.is_own(intent.tenant())),
                };
                if let Some(chosen) = intent.and_then(|intent| choose(&intent)) {
                    found.push((chosen, files));
                }
            }
            Ok(None) => {}
            Err(error) if lacks_descriptors(&error) => return Err(error.into()),
            Err(error) => tracing::warn!(sandbox = id, error = error_chain(&error), "cannot read a record"),
        }
    }
    Ok(found)
}

/// The beginning of what a command has written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outputs {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Whether that is all of standard output.
    pub has_all_stdout: bool,
    /// Whether that is all of standard error.
    pub has_all_stderr: bool,
}

impl Outputs {
    /// Reads a log from where it stands to its present end, at most `limit` bytes of each stream.
    pub fn read(mut log: LogReader, limit: usize) -> Outputs {
        let (mut all_out, mut all_err) = (true, true);
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match log.next_entry() {
                Ok(Some(LogEntry::Data { stream, bytes, .. })) => {
                    let (kept, is_all) = match stream {
                        Stream::Stdout => (&mut stdout, &mut all_out),
                        Stream::Stderr => (&mut stderr, &mut all_err),
                    };
                    let room = limit.saturating_sub(kept.len()).min(bytes.len());
                    kept.extend_from_slice(bytes.get(..room).unwrap_or_default());
                    *is_all &= room == bytes.len();
                }
                Ok(None) => break,
                // What is not in the log may be of either stream.
                Ok(Some(_)) => (all_out, all_err) = (false, false),
                Err(_) => {
                    (all_out, all_err) = (false, false);
                    break;
                }
            }
        }
        Outputs { stdout, stderr, has_all_stdout: all_out, has_all_stderr: all_err }
    }
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
