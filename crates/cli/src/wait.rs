//! `penfold wait`: what it does.

use penfold_sandbox::control::{self, End};
use penfold_sandbox::{StartFailure, Status};
use penfold_teardown::Cause;

use crate::args::Global;
use crate::args::ids::Among;
use crate::args::wait::WaitArgs;
use crate::ended::{self, Tally};
use crate::failure::Failure;
use crate::{exit_codes, output};

/// Waits until sandboxes are over and gives the exit codes of their commands.
pub(crate) fn wait(global: &Global, args: &WaitArgs) -> Result<u8, Failure> {
    let (finder, selection) = ended::select(global, &args.ids, Among::Living, true, "wait for")?;
    let mut tally = Tally::default();
    tally.missed(global, &selection.missed);
    let mut slow = |_| ();
    let ends = control::wait(&finder, &selection.found, args.any, args.timeout, &mut slow);
    let mut left = Vec::new();
    for (known, end) in selection.found.iter().zip(&ends) {
        let Some(end) = end else {
            left.push(known.id.as_str());
            continue;
        };
        let code = code(&known.id, end);
        let text = code.map_or_else(|| "unknown".to_owned(), |code| code.to_string());
        tally.done(&if args.any { format!("{} {text}", known.id) } else { text });
        tally.note(code.unwrap_or(exit_codes::UNVERIFIED));
    }
    let enough = args.any && left.len() < ends.len();
    if !left.is_empty() && !enough {
        let sentence = format!("not over in time: {}", left.join(", "));
        tally.failed(&Failure::new(exit_codes::TIMED_OUT, sentence), false);
    }
    tally.finish()
}

/// The exit code by the table of `penfold run`; nothing, and a sentence, when it is not known.
fn code(id: &str, end: &End) -> Option<u8> {
    let unknown = |why: &str| {
        output::talk(&format!("penfold: {id}: {why}\n"));
        None
    };
    match end {
        End::Unverified => {
            output::talk(&format!(
                "penfold: {id}: the command is over but something in the sandbox would not end; \
                 `penfold status {id}` says what\n"
            ));
            Some(exit_codes::UNVERIFIED)
        }
        End::Unknown => unknown("nobody looked after its end, so the exit code of its command is not known"),
        End::Known { cause: Cause::Timeout, .. } => Some(exit_codes::TIMED_OUT),
        End::Known { cause: Cause::StartFailed, failure, .. } => Some(match failure {
            Some(StartFailure::NotFound) => exit_codes::NOT_FOUND,
            Some(StartFailure::NotExecutable(_)) => exit_codes::NOT_EXECUTABLE,
            _ => exit_codes::NOT_STARTED,
        }),
        End::Known { exit: Some(Status::Code(code)), .. } => {
            Some(u8::try_from(*code).unwrap_or(exit_codes::FAILURE))
        }
        End::Known { exit: Some(Status::Signal(signal)), .. } => {
            Some(u8::try_from(*signal).unwrap_or(0).saturating_add(exit_codes::SIGNALLED))
        }
        End::Known { exit: None, .. } => unknown("nobody saw how its command ended"),
    }
}
