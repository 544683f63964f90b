//! Removes the record of an ended sandbox.

use std::error::Error;
use std::time::{Duration, Instant};

use penfold_process::ProcFs;
use penfold_teardown::{Resource as _, Survivor};

use crate::end::{EndLimits, EndMethod, StopResult, end_sandboxes};
use crate::holders::Locks;
use crate::resolve::{Resolver, SandboxRef};
use crate::timeout::pause_before_retry;
use crate::view::observe_sandbox;
use penfold_state::names::forget_name;
use penfold_state::record::{Registry, StateError};
use penfold_state::state::Status;

/// The interval at which a record is tried that another process has locked for a moment.
const AGAIN: Duration = Duration::from_millis(2);
/// The interval at which the holders of a longer lock are examined.
const PROGRESS_DELAY: Duration = Duration::from_millis(200);

/// Why the record of a sandbox cannot be removed.
#[derive(Debug, thiserror::Error)]
pub enum ForgetError {
    /// The sandbox has not ended.
    #[error("sandbox {id} is {status}")]
    Living {
        /// The id of the sandbox.
        id: String,
        /// The status of the sandbox.
        status: Status,
    },
    /// Something of the sandbox is left.
    #[error("something is left of sandbox {id}")]
    Left {
        /// The id of the sandbox.
        id: String,
        /// The survivors.
        survivors: Vec<Survivor>,
    },
    /// Another process has locked the record.
    #[error("the record of sandbox {id} is in use")]
    Busy {
        /// The id of the sandbox.
        id: String,
    },
    /// The record cannot be opened.
    #[error("the record of sandbox {id} cannot be opened")]
    Closed {
        /// The id of the sandbox.
        id: String,
        /// The cause.
        #[source]
        source: StateError,
    },
    /// The record cannot be removed.
    #[error("the record of sandbox {id} cannot be removed")]
    Stuck {
        /// The id of the sandbox.
        id: String,
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

/// Removes the record of an ended sandbox with its log and report. A record that is already gone counts as removed.
///
/// If the end was not verified, and no member is found, the remains are searched and cleaned up first.
///
/// # Errors
/// When the sandbox has not ended, or the record cannot be removed; the record stays then.
pub fn forget_sandbox(
    resolver: &Resolver,
    known: &SandboxRef,
    limits: &EndLimits,
) -> Result<(), ForgetError> {
    let id = || known.id.clone();
    if let Some(seen) = observe_sandbox(resolver, known) {
        if seen.status.is_living() {
            return Err(ForgetError::Living { id: id(), status: seen.status });
        }
        if seen.status == Status::Lost && !known.record.as_ref().is_some_and(penfold_state::Files::has_ended)
        {
            let stop_results =
                end_sandboxes(resolver, std::slice::from_ref(known), EndMethod::Kill, limits, &mut |_| ());
            match stop_results.into_iter().next() {
                Some(StopResult::Left(survivors)) => return Err(ForgetError::Left { id: id(), survivors }),
                Some(StopResult::Failed(error)) => {
                    return Err(ForgetError::Stuck { id: id(), source: Box::new(error) });
                }
                Some(StopResult::Gone) | None => {}
            }
        }
    }
    remove_record(resolver, known, limits)
}

/// Like [`forget_sandbox`], for a sandbox whose end [`end_sandboxes`] has verified. A process that holds its lock now only cleans up, and
/// is waited for.
///
/// # Errors
/// When the record cannot be removed; the record stays then.
pub fn remove_record(resolver: &Resolver, known: &SandboxRef, limits: &EndLimits) -> Result<(), ForgetError> {
    let id = || known.id.clone();
    let opened;
    let registry = match resolver.registry() {
        Some(registry) => registry,
        // The record is gone, or could not be opened by the lookup.
        None => match Registry::open_existing(resolver.root()) {
            Ok(None) => return Ok(()),
            Ok(Some(registry)) => {
                opened = registry;
                &opened
            }
            Err(source) => return Err(ForgetError::Closed { id: id(), source }),
        },
    };
    let begun = Instant::now();
    let mut ask_at = begun + PROGRESS_DELAY;
    loop {
        match registry.take(&known.id) {
            // The lock may have been taken at the very moment of its release.
            Ok(Some(mut record)) => {
                record.release(true).map_err(|source| ForgetError::Stuck { id: id(), source })?;
                if let Some(name) = &known.held_name() {
                    // If the sandbox was killed with its supervisors, its name may be left. A living holder of the name
                    // is another sandbox.
                    let _ = forget_name(resolver.root(), name, &known.id);
                }
                return Ok(());
            }
            Ok(None) if !registry.holds(&known.id) => return Ok(()),
            Ok(None) if begun.elapsed() >= limits.patience(known.intent.as_ref()) => {
                return Err(ForgetError::Busy { id: id() });
            }
            Ok(None) if Instant::now() >= ask_at => {
                wake(known);
                ask_at = Instant::now() + PROGRESS_DELAY;
            }
            Ok(None) => pause_before_retry(AGAIN),
            Err(source) => return Err(ForgetError::Closed { id: id(), source }),
        }
    }
}

/// Continues a command that was stopped while it cleaned up the sandbox.
fn wake(known: &SandboxRef) {
    let locks = Locks::of(&known.id, known.record.as_ref(), known.leaf.as_deref());
    if let Ok(mut proc) = ProcFs::open()
        && let Ok(holders) = locks.holders(&mut proc)
    {
        let _ = holders.wake(&mut proc);
    }
}
