//! A command in the persistent shell.

use penfold_session::{CommandEnd, EndKind, SessionClient, SessionClientError, ShellCommand};
use penfold_state::log::LogPosition;
use serde_json::json;

use crate::answer::RouteResult;
use crate::api::ApiState;
use crate::error::{ApiError, Code};
use crate::ids::SessionId;
use crate::sessions::{self, Session};
use penfold_server::survivors;

use super::Wanted;
use super::output::Done;

/// Runs a command in the shell of a session and answers when it has ended.
pub(super) async fn execute(api: &ApiState, id: &SessionId, wanted: Wanted) -> RouteResult {
    let session = sessions::obtain(api, id).await?;
    let output_limit = api.output_limit();
    let done = api.run(move |api| {
        let done = run(&session, wanted, output_limit);
        if done.as_ref().is_err_and(|error| error.code() == Code::SessionTerminated) {
            api.lost_shells.note(session.files.name());
        }
        done
    });
    done.await?.answer()
}

fn run(session: &Session, wanted: Wanted, output_limit: u64) -> Result<Done, ApiError> {
    let timeout_ms = wanted.timeout_ms.or(session.timeout_ms);
    let run = ShellCommand {
        command: wanted.command,
        cwd: wanted.cwd,
        env: wanted.env.into_iter().filter_map(|(name, value)| Some((name, value?))).collect(),
        timeout_ms,
        grace_ms: None,
        output_limit: Some(output_limit),
    };
    if let Some(flaw) = run.flaw() {
        return Err(failed(session, &run.command, &flaw));
    }
    let mut client = session.connect()?;
    let number = client.run(&run).map_err(|error| gave_up(session, &run.command, error))?;
    penfold_sys::crash_point!("serve-execute-accepted");
    let end = client.wait_end(number, None).map_err(|error| gave_up(session, &run.command, error))?;
    penfold_sys::crash_point!("serve-execute-ended");
    conclude(session, client, run, &end)
}

fn conclude(
    session: &Session,
    mut client: SessionClient,
    run: ShellCommand,
    end: &CommandEnd,
) -> Result<Done, ApiError> {
    let number = end.number;
    let id = session.id.as_str();
    let result = match end.how {
        EndKind::Exited => {
            let bytes = end.stdout_bytes + end.stderr_bytes;
            let log = || client.log(number, LogPosition::Start).map_err(|error| ApiError::internal(&error));
            let logs = if bytes == 0 { None } else { Some([log()?, log()?]) };
            Ok(Done {
                command: run.command,
                session: id.to_owned(),
                code: end.code,
                logs,
                stderr: String::new(),
                bytes: Some(bytes),
                truncated_bytes: end.truncated_bytes,
                more: Vec::new(),
            })
        }
        EndKind::ShellExited => {
            let message =
                format!("Session '{id}' was terminated: its shell exited (exit code: {})", end.code);
            let error = ApiError::new(Code::SessionTerminated, message).with("sessionId", id);
            let error =
                error.with("exitCode", end.code).with("began", end.began).with("command", run.command);
            Err(error.suggestion("repeat the command: the session has a fresh shell"))
        }
        EndKind::TimedOut => {
            let limit = run.timeout_ms.unwrap_or_default();
            let mut error = failed(session, &run.command, &format!("Command timeout after {limit}ms"));
            error = error.with("timeoutMs", limit).with("replaced", end.replaced);
            if !end.remaining.is_empty() {
                tracing::warn!(session = id, left = end.remaining.len(), "a command is not gone");
                error = error.with("remaining", survivors::list_survivors(&end.remaining));
            }
            Err(error)
        }
        EndKind::Interrupted => Err(failed(session, &run.command, "the command was interrupted")),
        EndKind::StartFailed => {
            Err(failed(session, &run.command, end.reason.as_deref().unwrap_or("the shell cannot run it")))
        }
    };
    // Its open log stays readable.
    let _ = client.forget(number);
    result
}

fn failed(session: &Session, command: &str, why: &str) -> ApiError {
    let id = session.id.as_str();
    let message = format!("Failed to execute command '{command}' in session '{id}': {why}");
    ApiError::new(Code::CommandExecutionError.or_no_space(why), message)
        .with("command", command)
        .with("stderr", why)
        .with("sessionId", json!(id))
        .operation("command.execute")
}

/// A client got no end.
fn gave_up(session: &Session, command: &str, error: SessionClientError) -> ApiError {
    match error {
        // The flaws of a command were looked for: the queue is full.
        SessionClientError::Refused(reason) => {
            ApiError::overload(Code::CommandExecutionError, reason).with("sessionId", session.id.as_str())
        }
        error if session.is_ending(&error) => {
            tracing::debug!(%error, "a session ended while a command ran");
            session.destroyed()
        }
        error => failed(session, command, &penfold_state::error_chain(&error)),
    }
}
