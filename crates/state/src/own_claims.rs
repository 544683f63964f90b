//! Claims of what the commands of sandboxes make themselves: of two sandboxes with one state root, only one may name a thing
//! with `--own`. Otherwise the end of one would release what the other has made.
//!
//! A claim is the name of a sandbox, made from the thing, and is held and released like one.

use std::path::Path;

use penfold_resource::Planned;

use crate::error_chain::error_chain;
use crate::fnv::fnv;
use crate::id::Id;
use crate::names::{self, Name, NameError};

/// Why a thing cannot be claimed.
#[derive(Debug, thiserror::Error)]
pub enum OwnClaimError {
    /// Another living sandbox names it.
    #[error("{thing} belongs to sandbox {holder}")]
    Taken {
        /// The thing, in words.
        thing: String,
        /// The id of the sandbox.
        holder: String,
    },
    /// The claim cannot be made.
    #[error("cannot claim {thing}: {reason}")]
    Failed {
        /// The thing, in words.
        thing: String,
        /// The cause.
        reason: String,
    },
}

fn name_of(text: &str) -> String {
    format!("own-{:032x}", fnv(text.as_bytes()))
}

/// Claims a resource for a sandbox; `None` for one that penfold makes itself, under a name that only one sandbox has.
///
/// # Errors
/// When another living sandbox has claimed it, or the claim cannot be made.
pub fn take(root: &Path, planned: &Planned, id: &Id) -> Result<Option<Name>, OwnClaimError> {
    let Some(text) = planned.own_text() else { return Ok(None) };
    let thing = planned.describe();
    names::take(root, &name_of(&text), id).map(Some).map_err(|error| match error {
        NameError::Taken { holder, .. } => OwnClaimError::Taken { thing, holder },
        error => OwnClaimError::Failed { thing, reason: error_chain(&error) },
    })
}

/// Tells whether a living sandbox other than this one has claimed the resource by now, or may have.
pub(crate) fn is_anothers(root: &Path, planned: &Planned, id: &str) -> bool {
    planned.own_text().is_some_and(|text| match names::holder(root, &name_of(&text)) {
        Ok(holder) => holder.is_some_and(|holder| holder != id),
        Err(_) => true,
    })
}
