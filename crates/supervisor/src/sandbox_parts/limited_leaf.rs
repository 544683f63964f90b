//! The limits of a sandbox: finds the place for its leaf, and sets them.

use penfold_cgroup::{Leaf, LeafPlace, LimitError, LimitedPlace, Limits};
use penfold_state::error_chain;

use crate::setup::Setup;

/// Finds the place for a leaf with the limits of the spec, if it has any. Changes the limits in the spec to those that will hold.
pub(super) fn find_place(setup: &mut Setup) -> Result<Option<LimitedPlace>, String> {
    let wanted = setup.spec.limits;
    if wanted.is_empty() {
        return Ok(None);
    }
    let found = match &setup.scope {
        Some(scope) => LimitedPlace::in_scope(scope, &setup.caller_cgroup, &wanted),
        None => LimitedPlace::find_here(&wanted),
    };
    let found = found.map_err(|error| refusal(&error))?;
    setup.spec.limits = *found.limits();
    Ok(Some(found))
}

/// Enables the controllers for the leaf.
pub(super) fn enable_controllers(place: LimitedPlace) -> Result<LeafPlace, String> {
    place.enable().map_err(|error| refusal(&error))
}

/// Sets the limits of a new leaf. A leaf that does not hold them is removed.
pub(super) fn set_limits(leaf: Leaf, limits: &Limits) -> Result<Leaf, String> {
    match leaf.limit(limits) {
        Ok(()) => Ok(leaf),
        Err(error) => match leaf.remove() {
            Ok(()) => Err(refusal(&error)),
            Err(left) => Err(format!("{}; {}", refusal(&error), error_chain(&left))),
        },
    }
}

fn refusal(error: &LimitError) -> String {
    format!("the limits cannot be held: {}", error_chain(error))
}
