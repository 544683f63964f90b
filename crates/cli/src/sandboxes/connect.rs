//! A connection to the supervisor of one sandbox.

use penfold_control::{ANSWER, Client, ClientError};
use penfold_state::lives::NextLife;
use penfold_state::{Files, error_chain};

use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::find;

/// Connects to the supervisor of a sandbox, and returns its record too, for `exec` and `attach`.
pub(crate) fn connect(global: &Global, word: &str) -> Result<(Client, Files), Failure> {
    let resolver = find::resolver(global);
    let known = resolver.resolve(word).map_err(Failure::not_started)?;
    let id = known.id.clone();
    let refused = |reason: &str| Failure::new(FailureKind::NotStarted, format!("sandbox {id} {reason}"));
    let Some(files) = known.record else {
        let gone = || refused("has no record");
        return Err(resolver.blocked().map_or_else(gone, Failure::not_started));
    };
    let has_ended = || refused("has ended").hint(format!("`penfold report {id}` shows how"));
    if files.next_life() == Some(NextLife::Awaited) {
        return Err(refused("is waiting for its next start: no command runs now"));
    }
    // A held lock outweighs a report: a member may have written the report.
    if files.has_ended() && files.lock().is_free() {
        return Err(has_ended());
    }
    let client = Client::connect(&files, ANSWER).map_err(|error| {
        let foreground = known.intent.as_ref().is_some_and(|intent| intent.detached.is_none());
        let foreground = foreground && matches!(error, ClientError::NoSocket { .. });
        if matches!(error, ClientError::Ended { .. }) {
            return has_ended();
        }
        let failure = Failure::new(FailureKind::NotStarted, error_chain(&error));
        if foreground {
            return failure.hint("only a sandbox of `penfold run -d` accepts `exec` and `attach`");
        }
        failure
    })?;
    Ok((client, files))
}
