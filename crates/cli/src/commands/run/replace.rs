//! `penfold run --replace`: stops the sandbox that has a name, and takes the name.

use std::path::Path;
use std::time::{Duration, Instant};

use penfold_control::{EndMethod, Limits, Resolver, StopResult};
use penfold_state::Id;
use penfold_state::names::{self, Name, NameError};
use rustix::event::Timespec;

use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::tally;
use crate::surroundings;

/// The time limit while several calls with `--replace` take the same name from each other.
const CONTEST: Duration = Duration::from_secs(30);
/// The interval between attempts while the name belongs to a sandbox without a record: it is starting or ending.
const RETRY_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// Takes a name for a new sandbox. First stops the sandbox that has the name, with that sandbox's signal and grace, until
/// it is verified gone.
///
/// # Errors
/// If that sandbox cannot be ended or encloses the caller, or if other calls keep taking the name.
pub(crate) fn take(global: &Global, root: &Path, name: &str, id: &Id) -> Result<Name, Failure> {
    let refused = |why: &dyn std::fmt::Display| {
        Failure::new(FailureKind::NotStarted, format!("cannot replace `{name}`: {why}"))
    };
    let begun = Instant::now();
    loop {
        let holder = match names::take(root, name, id) {
            Ok(name) => return Ok(name),
            Err(NameError::Taken { holder, .. }) if begun.elapsed() < CONTEST => holder,
            Err(error @ NameError::Taken { .. }) => return Err(refused(&error)),
            Err(error) => return Err(refused(&"cannot take the name").because(error)),
        };
        if surroundings::outer_sandboxes().contains(&holder) {
            return Err(refused(&format!("this command runs in sandbox {holder}, which has the name")));
        }
        if let Ok(known) = Resolver::new(root).resolve(&holder) {
            let targets = [known];
            let mut slow = tally::progress(global, "stopping", &targets);
            let how = EndMethod::Stop { signal: None, grace: None };
            let stop_result =
                penfold_control::end(&Resolver::new(root), &targets, how, &Limits::default(), &mut slow)
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
