//! Removes the record of a sandbox that is over.

use std::error::Error;
use std::time::{Duration, Instant};

use penfold_process::ProcFs;
use penfold_teardown::{Resource as _, Survivor};

use crate::end::holders::Locks;
use crate::end::{Fate, How, Limits, end, pause};
use crate::resolve::{Finder, Known};
use crate::view::view;
use penfold_state::names::forget_name;
use penfold_state::record::{Registry, StateError};
use penfold_state::state::Word;

/// How often a record is tried that another one has locked for a moment.
const AGAIN: Duration = Duration::from_millis(2);
/// How often it is looked at who has it locked for longer.
const WONDER: Duration = Duration::from_millis(200);

/// Why a sandbox cannot be forgotten.
#[derive(Debug, thiserror::Error)]
pub enum ForgetError {
    /// It is not over.
    #[error("sandbox {id} is {word}")]
    Living {
        /// The sandbox.
        id: String,
        /// In which state it is.
        word: Word,
    },
    /// Something is left of it.
    #[error("something is left of sandbox {id}")]
    Left {
        /// The sandbox.
        id: String,
        /// What.
        survivors: Vec<Survivor>,
    },
    /// Its record is locked by somebody.
    #[error("the record of sandbox {id} is in use")]
    Busy {
        /// The sandbox.
        id: String,
    },
    /// Its record cannot be opened.
    #[error("the record of sandbox {id} cannot be opened")]
    Closed {
        /// The sandbox.
        id: String,
        /// What stood in the way.
        #[source]
        source: StateError,
    },
    /// Its record cannot be removed.
    #[error("the record of sandbox {id} cannot be removed")]
    Stuck {
        /// The sandbox.
        id: String,
        /// What stood in the way.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

/// Removes the record of a sandbox that is over, its log and report with it. One that is gone already counts as removed.
///
/// What nobody has seen end, and nothing of which is found, is looked for and put away first.
///
/// # Errors
/// When it is not over, or the record cannot be removed; it stays then.
pub fn forget(finder: &Finder, known: &Known, limits: &Limits) -> Result<(), ForgetError> {
    let id = || known.id.clone();
    if let Some(seen) = view(finder, known) {
        if seen.word.is_living() {
            return Err(ForgetError::Living { id: id(), word: seen.word });
        }
        if seen.word == Word::Lost && !known.record.as_ref().is_some_and(penfold_state::Files::has_ended) {
            let fates = end(finder, std::slice::from_ref(known), How::Kill, limits, &mut |_| ());
            match fates.into_iter().next() {
                Some(Fate::Left(survivors)) => return Err(ForgetError::Left { id: id(), survivors }),
                Some(Fate::Failed(error)) => {
                    return Err(ForgetError::Stuck { id: id(), source: Box::new(error) });
                }
                Some(Fate::Gone) | None => {}
            }
        }
    }
    put_away(finder, known, limits)
}

/// The same of one whose end was seen, by [`end`]: who holds its lock now does so only to put it away, and is waited for.
///
/// # Errors
/// When the record cannot be removed; it stays then.
pub fn put_away(finder: &Finder, known: &Known, limits: &Limits) -> Result<(), ForgetError> {
    let id = || known.id.clone();
    let opened;
    let registry = match finder.registry() {
        Some(registry) => registry,
        // None, or none that could be opened when it was looked for.
        None => match Registry::open_existing(finder.root()) {
            Ok(None) => return Ok(()),
            Ok(Some(registry)) => {
                opened = registry;
                &opened
            }
            Err(source) => return Err(ForgetError::Closed { id: id(), source }),
        },
    };
    let begun = Instant::now();
    let mut wonder = begun + WONDER;
    loop {
        match registry.take(&known.id) {
            // It may have been taken in the very moment in which it was let go.
            Ok(Some(mut record)) => {
                record.release(true).map_err(|source| ForgetError::Stuck { id: id(), source })?;
                if let Some(name) = &known.name {
                    // Of one that was killed with its supervisors it may have stayed; who lives holds another's.
                    let _ = forget_name(finder.root(), name, &known.id);
                }
                return Ok(());
            }
            Ok(None) if !registry.holds(&known.id) => return Ok(()),
            Ok(None) if begun.elapsed() >= limits.patience(known.intent.as_ref()) => {
                return Err(ForgetError::Busy { id: id() });
            }
            Ok(None) if Instant::now() >= wonder => {
                wake(known);
                wonder = Instant::now() + WONDER;
            }
            Ok(None) => pause(AGAIN),
            Err(source) => return Err(ForgetError::Closed { id: id(), source }),
        }
    }
}

/// Lets a command go on that was stopped while it put the sandbox away.
fn wake(known: &Known) {
    let locks = Locks::of(&known.id, known.record.as_ref(), known.leaf.as_deref());
    if let Ok(mut proc) = ProcFs::open()
        && let Ok(holders) = locks.holders(&mut proc)
    {
        let _ = holders.wake(&mut proc);
    }
}
