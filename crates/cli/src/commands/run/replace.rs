//! `penfold run --replace`: takes a name over from the sandbox that has it.

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

/// For how long several that want the same name take it from each other.
const CONTEST: Duration = Duration::from_secs(30);
/// How often the name of a sandbox is tried that has no record yet, or has none any more.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// Takes a name for a sandbox that is about to start. The sandbox that has the name is stopped first, with its own signal
/// and grace, and was seen to be gone.
///
/// # Errors
/// When that sandbox cannot be ended or is one that the caller is in, or others take the name again and again.
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
            Err(error) => return Err(refused(&"the name cannot be taken").because(error)),
        };
        if surroundings::outer_sandboxes().contains(&holder) {
            return Err(refused(&format!("this command runs in sandbox {holder}, which has the name")));
        }
        if let Ok(known) = Resolver::new(root).resolve(&holder) {
            let mut slow = tally::progress(global, "stopping");
            let how = EndMethod::Stop { signal: None, grace: None };
            let stop_result =
                penfold_control::end(&Resolver::new(root), &[known], how, &Limits::default(), &mut slow)
                    .pop();
            match stop_result {
                Some(StopResult::Left(survivors)) => {
                    let named: Vec<String> = survivors.iter().map(ToString::to_string).collect();
                    let left = named.join(", ");
                    return Err(refused(&format!("something is left of sandbox {holder}: {left}")));
                }
                Some(StopResult::Failed(error)) => {
                    return Err(refused(&format!("sandbox {holder} cannot be ended")).because(error));
                }
                Some(StopResult::Gone) | None => {}
            }
        }
        // Its processes let the name go when they exit; of a sandbox that is just being made there is no record yet.
        let _ = rustix::event::poll(&mut [], Some(&AGAIN));
    }
}
