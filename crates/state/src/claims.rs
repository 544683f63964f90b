//! Claims of what only one sandbox may have: what its command makes itself, a mount point, an address of the host. Of two
//! that start at once, both would find it free, and the end of one would release what the other has made.
//!
//! A claim is the name of a sandbox, made from the thing, and is held and released like one. It tells apart the sandboxes of
//! one state root.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use penfold_resource::{OwnedResource, PlannedResource};
use penfold_teardown::Resource;

use crate::error_chain::error_chain;
use crate::fnv::fnv_hash;
use crate::id::Id;
use crate::names::{self, NameClaim, NameError};

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
    format!("claim-{:032x}", fnv_hash(thing.as_bytes()))
}

/// Claims a thing, given as `KIND=NAME`, for a sandbox.
///
/// # Errors
/// When another living sandbox has claimed it, or the claim cannot be made.
pub fn claim_resource(root: &Path, thing: String, id: &Id) -> Result<NameClaim, ClaimError> {
    names::take_name(root, &name_of(&thing), id).map_err(|error| match error {
        NameError::Taken { holder, .. } => ClaimError::Taken { thing, holder },
        error => ClaimError::Failed { thing, reason: error_chain(&error) },
    })
}

/// A resource of a sandbox without a supervisor. What only its name shows to be the sandbox's is released under its claims: a
/// sandbox that starts meanwhile makes it only afterwards, and what another sandbox has claimed by then is left alone.
pub(crate) struct OrphanResource {
    root: PathBuf,
    id: String,
    planned: PlannedResource,
    owned: OwnedResource,
}

impl OrphanResource {
    /// The resource of the sandbox `id` of this state root.
    pub(crate) fn new(
        root: &Path,
        id: &str,
        planned: PlannedResource,
        owned: OwnedResource,
    ) -> OrphanResource {
        OrphanResource { root: root.to_owned(), id: id.to_owned(), planned, owned }
    }

    /// Takes the claims of the resource; `None` if another sandbox has one.
    fn claim(&self) -> io::Result<Option<Vec<NameClaim>>> {
        let mut claims = Vec::new();
        for thing in self.planned.claims() {
            let name = name_of(&thing);
            match names::claim_name(&self.root, &name) {
                Ok(claim) => claims.push(claim),
                Err(NameError::Taken { holder, .. }) if holder == self.id => {}
                Err(NameError::Taken { .. }) => return Ok(None),
                // An end needs no space for the file of a claim: nobody has it, or nobody can have it now.
                Err(_) => match names::name_holder(&self.root, &name)? {
                    Some(holder) if holder != self.id => return Ok(None),
                    _ => {}
                },
            }
        }
        Ok(Some(claims))
    }
}

impl Resource for OrphanResource {
    fn describe(&self) -> String {
        self.owned.describe()
    }

    fn release(&mut self, forced: bool) -> Result<(), Box<dyn Error + Send + Sync>> {
        if !self.planned.is_known_by_name() {
            return self.owned.release(forced);
        }
        penfold_sys::crash_point!("releasing");
        let Some(mut claims) = self.claim()? else { return Ok(()) };
        self.owned.release(forced)?;
        for claim in &mut claims {
            claim.release(forced)?;
        }
        Ok(())
    }
}

/// Tells whether a living sandbox other than this one has claimed the resource by now; where that cannot be told, the release
/// says so. A resource with a mark cannot be taken for another's.
pub(crate) fn is_anothers(root: &Path, planned: &PlannedResource, id: &str) -> bool {
    planned.is_known_by_name()
        && planned.claims().iter().any(
            |thing| matches!(names::name_holder(root, &name_of(thing)), Ok(Some(holder)) if holder != id),
        )
}
