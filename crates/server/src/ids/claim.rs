//! Claims of ids on disk: of two servers with one state root, only one gives an id to what it starts. Each tenant has ids of its own.
//!
//! An id is claimed like the name of a sandbox, under a name made from the id. The file of the claim is locked while the
//! owner of the id starts, and holds the id of its sandbox afterwards. A claim is worth as much as its owner: without
//! something of this id in that sandbox, the id is free. `penfold gc` removes the claims of sandboxes that are gone.

use std::io;

use penfold_control::Scope;
use penfold_state::names::{self, NameClaim, NameError};
use penfold_state::{error_chain, fnv_hash};
use penfold_teardown::Resource as _;

/// Why an id was not claimed. `E` is the error of a look at the last owner.
#[derive(Debug)]
pub enum ClaimError<E> {
    /// Something has the id, or another server starts it.
    Taken,
    /// The claim cannot be opened.
    Name(NameError),
    /// The claim cannot be written.
    Write(io::Error),
    /// The last owner cannot be looked at.
    Look(E),
}

/// The claim of an id for something that starts. Once the value is dropped, the claim is worth as much as its owner.
#[derive(Debug)]
pub struct IdClaim(NameClaim);

impl IdClaim {
    /// Claims the id with this name for something in the sandbox. `is_used` tells whether the sandbox that held the claim last
    /// has something with the id.
    ///
    /// # Errors
    /// When the id is taken, or the claim cannot be written.
    pub fn of<E>(
        scope: &Scope,
        name: &str,
        sandbox: &str,
        is_used: impl FnOnce(&str) -> Result<bool, E>,
    ) -> Result<IdClaim, ClaimError<E>> {
        let mut name =
            names::claim_name(scope.root(), &scope.held_name(name)).map_err(|error| match error {
                NameError::Taken { .. } => ClaimError::Taken,
                error => ClaimError::Name(error),
            })?;
        if let Some(last) = name.last_holder()
            && is_used(&last).map_err(ClaimError::Look)?
        {
            return Err(ClaimError::Taken);
        }
        if let Err(error) = name.give(sandbox) {
            let _ = name.release(false);
            return Err(ClaimError::Write(error));
        }
        Ok(IdClaim(name))
    }

    /// Gives the id back, because nothing was started with it.
    pub fn withdraw(mut self) {
        let _ = self.0.release(false);
    }
}

/// Removes the claim with this name, whose owner in the sandbox is gone.
pub fn forget_claim(scope: &Scope, name: &str, sandbox: &str) {
    if let Err(error) = names::forget_name(scope.root(), &scope.held_name(name), sandbox) {
        tracing::warn!(name, error = error_chain(&error), "cannot remove the claim of an id");
    }
}

/// Makes a name of an id that may have any characters: this prefix and a hash, the same in every version of the server.
pub fn hashed_name(prefix: &str, id: &str) -> String {
    format!("{prefix}-{:032x}", fnv_hash(id.as_bytes()))
}
