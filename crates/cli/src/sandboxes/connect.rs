//! A connection to the supervisor of one sandbox.

use penfold_control::{ANSWER, SupervisorClient, SupervisorClientError};
use penfold_state::lives::NextLife;
use penfold_state::{Files, error_chain};

use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::find;

/// Connects to the supervisor of a sandbox, and returns its record too, for `exec` and `attach`.
pub(crate) fn connect(global: &Global, word: &str) -> Result<(SupervisorClient, Files), Failure> {
    let resolver = find::resolver(global);
    let known = resolver.resolve(word).map_err(Failure::not_started)?;
    let id = known.id.clone();
    let refused = |reason: &str| Failure::new(FailureKind::NotStarted, format!("sandbox {id} {reason}"));
    let Some(files) = known.record else {
        let gone = || refused("has lost its record").hint(format!("`penfold kill {id}` ends it"));
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
    let client = SupervisorClient::connect(&files, ANSWER).map_err(|error| {
        if matches!(error, SupervisorClientError::Ended { .. }) {
            return has_ended();
        }
        let failure = Failure::new(FailureKind::NotStarted, error_chain(&error));
        match error {
            SupervisorClientError::Foreground { .. } => {
                failure.hint("only a sandbox of `penfold run -d` accepts `exec` and `attach`")
            }
            SupervisorClientError::NoSocket { .. } | SupervisorClientError::Deserted { .. } => {
                failure.hint(format!("`penfold kill {id}` ends the sandbox"))
            }
            _ => failure,
        }
    })?;
    Ok((client, files))
}
