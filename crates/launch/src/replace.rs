//! Replacement: stops the sandbox that has a name, and takes the name.

use std::time::{Duration, Instant};

use penfold_control::{EndLimits, EndMethod, Resolver, StopResult};
use penfold_state::Id;
use penfold_state::names::{self, NameClaim, NameError};
use rustix::event::Timespec;

use crate::caller::Explainer;
use crate::error::LaunchError;
use crate::surroundings::Surroundings;

/// The time limit while several calls with `--replace` take the same name from each other.
const CONTEST: Duration = Duration::from_secs(30);
/// The interval between attempts while the name belongs to a sandbox without a record: it is starting or ending.
const RETRY_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// Takes a name for a new sandbox. First stops the sandbox that has the name, with that sandbox's signal and grace, until
/// it is verified gone.
///
/// # Errors
/// If that sandbox cannot be ended or encloses the caller, or if other calls keep taking the name.
pub(crate) fn take_name(
    name: &str,
    id: &Id,
    surroundings: &Surroundings,
    explainer: &mut dyn Explainer,
) -> Result<NameClaim, LaunchError> {
    let root = &surroundings.state_root;
    let shown = names::name_in(name);
    let refused = |why: &dyn std::fmt::Display| LaunchError::new(format!("cannot replace `{shown}`: {why}"));
    let begun = Instant::now();
    loop {
        let holder = match names::take_name(root, name, id) {
            Ok(name) => return Ok(name),
            Err(NameError::Taken { holder, .. }) if begun.elapsed() < CONTEST => holder,
            Err(error @ NameError::Taken { .. }) => return Err(refused(&error)),
            Err(error) => return Err(refused(&"cannot take the name").because(error)),
        };
        if surroundings.variables.outer_sandboxes().contains(&holder) {
            return Err(refused(&format!("this command runs in sandbox {holder}, which has the name")));
        }
        if let Ok(known) = Resolver::new(root).resolve(&holder) {
            let targets = [known];
            let mut slow = explainer.replacement(&targets);
            let how = EndMethod::Stop { signal: None, grace: None };
            let stop_result = penfold_control::end_sandboxes(
                &Resolver::new(root),
                &targets,
                how,
                &EndLimits::default(),
                &mut slow,
            )
            .pop();
            drop(slow);
            match stop_result {
                Some(StopResult::Left(survivors)) => {
                    let named: Vec<String> = survivors.iter().map(ToString::to_string).collect();
                    let left = named.join(", ");
                    return Err(refused(&format!("members of sandbox {holder} are still there: {left}")));
                }
                Some(StopResult::Failed(error)) => {
                    return Err(refused(&format!("cannot end sandbox {holder}")).because(error));
                }
                Some(StopResult::Gone) | None => {}
            }
        }
        // The processes of the sandbox release the name when they exit. A sandbox that is just starting has no record yet.
        let _ = rustix::event::poll(&mut [], Some(&RETRY_INTERVAL));
    }
}
