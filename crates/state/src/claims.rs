//! Claims of what only one sandbox may have: what its command makes itself, a mount point, an address of the host. Of two
//! that start at once, both would find it free, and the end of one would release what the other has made.
//!
//! A claim is the name of a sandbox, made from the thing, and is held and released like one. It tells apart the sandboxes of
//! one state root.

use std::path::Path;

use penfold_resource::Planned;

use crate::error_chain::error_chain;
use crate::fnv::fnv;
use crate::id::Id;
use crate::names::{self, Name, NameError};

/// Why a thing cannot be claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another living sandbox has it.
    #[error("`{thing}` belongs to sandbox {holder}")]
    Taken {
        /// The kind and the name.
        thing: String,
        /// The id of the sandbox.
        holder: String,
    },
    /// The claim cannot be made.
    #[error("cannot claim `{thing}`: {reason}")]
    Failed {
        /// The kind and the name.
        thing: String,
        /// The cause.
        reason: String,
    },
}

fn name_of(thing: &str) -> String {
    format!("claim-{:032x}", fnv(thing.as_bytes()))
}

/// Claims a thing, given as `KIND=NAME`, for a sandbox.
///
/// # Errors
/// When another living sandbox has claimed it, or the claim cannot be made.
pub fn take(root: &Path, thing: String, id: &Id) -> Result<Name, ClaimError> {
    names::take(root, &name_of(&thing), id).map_err(|error| match error {
        NameError::Taken { holder, .. } => ClaimError::Taken { thing, holder },
        error => ClaimError::Failed { thing, reason: error_chain(&error) },
    })
}

/// Tells whether a living sandbox other than this one has claimed the resource by now, or may have. A resource with a mark
/// cannot be taken for another's.
pub(crate) fn is_anothers(root: &Path, planned: &Planned, id: &str) -> bool {
    planned.is_known_by_name()
        && planned.claims().iter().any(|thing| match names::holder(root, &name_of(thing)) {
            Ok(holder) => holder.is_some_and(|holder| holder != id),
            Err(_) => true,
        })
}
