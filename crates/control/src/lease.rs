//! Renews the lease of a detached sandbox.

use penfold_state::state::Status;
use penfold_state::wire::{Answer, Request};

use crate::client::{ANSWER, SupervisorClient, SupervisorClientError, ended_or};
use crate::resolve::{Resolver, SandboxRef};
use crate::view::observe_sandbox;

/// Why a lease was not renewed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LeaseError {
    /// Nothing of the sandbox is left, its record included.
    #[error("the sandbox is gone")]
    Gone,
    /// The sandbox has ended with this status.
    #[error("the sandbox is {0}")]
    NotLiving(Status),
    /// Members live, and the record that leads to the supervisor is lost.
    #[error("its record is lost, so its supervisor cannot be asked")]
    NoRecord,
    /// Members live, and all processes that supervised them are dead.
    #[error("it has lost its supervisors")]
    Orphaned,
    /// The sandbox ended during the request.
    #[error("the sandbox has ended")]
    Ended,
    /// The supervisor has refused the request, for this reason.
    #[error("{0}")]
    Refused(String),
    /// The supervisor could not be asked.
    #[error(transparent)]
    Client(#[from] SupervisorClientError),
    /// The supervisor speaks another language.
    #[error("the supervisor sent an unexpected answer")]
    Unexpected,
}

/// Sets the lease of a sandbox to this many milliseconds from now; 0 removes the lease.
///
/// # Errors
/// The lease is as it was. If the supervisor did not answer in time, it may still renew the lease.
pub fn extend_lease(resolver: &Resolver, known: &SandboxRef, lease_ms: u64) -> Result<(), LeaseError> {
    let status = observe_sandbox(resolver, known).map(|seen| seen.status).ok_or(LeaseError::Gone)?;
    if !status.is_living() {
        return Err(LeaseError::NotLiving(status));
    }
    let files = known.record.as_ref().ok_or(LeaseError::NoRecord)?;
    if status == Status::Orphaned {
        return Err(LeaseError::Orphaned);
    }
    let answer = SupervisorClient::connect(files, ANSWER)
        .and_then(|client| {
            penfold_sys::crash_point!("extend-connected");
            client.request(&Request::Extend(lease_ms), ANSWER)
        })
        .map_err(|error| ended_or(files, error))?;
    match answer {
        Answer::Done => Ok(()),
        Answer::Refused(reason) => Err(LeaseError::Refused(reason)),
        Answer::Outcome(_) => Err(LeaseError::Ended),
        _ => Err(LeaseError::Unexpected),
    }
}
