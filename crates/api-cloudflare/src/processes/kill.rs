//! Ends processes: TERM to the whole tree, a grace, KILL, and an observed end.

use penfold_control::at_once;
use penfold_server::execs::FoundExec;
use rustix::process::Signal;

use crate::api::ApiState;
use crate::end_tree::{TreeEnd, end_tree, end_trees};
use crate::error::{ApiError, Code};
use penfold_server::survivors;

use super::look::{self, Seen};

pub(super) const TERM: i32 = Signal::TERM.as_raw();
pub(super) const KILL: i32 = Signal::KILL.as_raw();

/// Ends one process.
///
/// # Errors
/// 404 when there is none, or it has ended; 500 with what is left when its end was not observed.
pub(super) async fn one(api: &ApiState, id: String) -> Result<(), ApiError> {
    with_signal(api, id, TERM).await
}

/// Ends one process: with TERM and a grace, or with KILL at once.
///
/// # Errors
/// As [`one`].
pub(super) async fn with_signal(api: &ApiState, id: String, signal: i32) -> Result<(), ApiError> {
    let killed = api.wait(move |api| {
        let seen = look::observe_process(api, &id)?;
        if !seen.is_running() {
            return Err(ended_before(&seen));
        }
        penfold_sys::crash_point!("serve-kill-wanted");
        judge(&seen, end_tree(&seen.exec, signal))?;
        penfold_sys::crash_point!("serve-killed");
        Ok(seen)
    });
    let seen = killed.await?;
    let (sandbox, number) = (seen.exec.files.name().to_owned(), seen.number());
    api.followers.finish(|followed| *followed == (sandbox.clone(), number)).await;
    Ok(())
}

fn ended_before(seen: &Seen) -> ApiError {
    let (id, session) = (&seen.id, &seen.session);
    let message = format!("Command '{id}' not found or already completed in session '{session}'");
    ApiError::new(Code::CommandNotFound, message).with("command", id.as_str()).with("processId", id.as_str())
}

fn judge(seen: &Seen, end: TreeEnd) -> Result<(), ApiError> {
    match end {
        TreeEnd::Gone => Ok(()),
        TreeEnd::Left(survivors) => Err(not_gone(seen, &survivors)),
        TreeEnd::Failed(why) => {
            let message = format!("Process '{}' cannot be killed: {why}", seen.id);
            Err(ApiError::new(Code::ProcessError, message).with("processId", seen.id.as_str()))
        }
    }
}

fn not_gone(seen: &Seen, survivors: &[penfold_teardown::Survivor]) -> ApiError {
    let list = survivors::list_survivors(survivors);
    tracing::warn!(process = seen.id, session = seen.session, remaining = %list, "a process is not gone");
    let message = format!("Process '{}' is not gone: {}", seen.id, survivors::survivors_sentence(survivors));
    ApiError::new(Code::ProcessError, message).with("processId", seen.id.as_str()).with("remaining", list)
}

/// Ends processes, those of each sandbox on one connection to its supervisor. No sandbox waits for another.
fn end_all(mut all: Vec<Seen>) -> Vec<(Seen, Result<(), ApiError>)> {
    all.sort_by(|one, other| one.exec.files.name().cmp(other.exec.files.name()));
    let of_sandboxes: Vec<&[Seen]> =
        all.chunk_by(|one, other| one.exec.files.name() == other.exec.files.name()).collect();
    let results = at_once(&of_sandboxes, |some| {
        let trees: Vec<&FoundExec> = some.iter().map(|seen| &seen.exec).collect();
        let ends = end_trees(&trees, TERM);
        some.iter().zip(ends).map(|(seen, end)| judge(seen, end)).collect::<Vec<_>>()
    });
    let results: Vec<_> = results.into_iter().flatten().collect();
    let mut all: Vec<_> = all.into_iter().zip(results).collect();
    all.sort_by(|(one, _), (other, _)| look::by_age(one, other));
    all
}

/// The result of ending all processes.
#[derive(Debug)]
pub(super) struct AllEnded {
    /// Those whose end was observed.
    pub(super) verified: usize,
    /// The errors of the others, by process.
    pub(super) failed: Vec<(String, ApiError)>,
}

/// Ends all processes at the same time.
///
/// # Errors
/// When the state root cannot be read.
pub(super) async fn all(api: &ApiState) -> Result<AllEnded, ApiError> {
    let ended = api.wait(|api| {
        let running = look::observe_running(api)?;
        penfold_sys::crash_point!("serve-kill-all-wanted");
        let ended = end_all(running);
        penfold_sys::crash_point!("serve-all-killed");
        Ok(ended)
    });
    let mut all = AllEnded { verified: 0, failed: Vec::new() };
    let mut gone = Vec::new();
    for (seen, result) in ended.await? {
        match result {
            Ok(()) => {
                all.verified += 1;
                gone.push((seen.exec.files.name().to_owned(), seen.number()));
            }
            Err(error) => all.failed.push((seen.id, error)),
        }
    }
    api.followers.finish(|followed| gone.contains(followed)).await;
    Ok(all)
}
