//! Commands of a session: run, interrupt, read the end and the output.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use penfold_control::Scope;
use penfold_server::AppState;
use penfold_server::records::Outputs;
use penfold_server::sent_body;
use penfold_server::sessions::{CommandState, ConnectedSession};
use penfold_session::{CommandEnd, ShellCommand};
use penfold_state::log::{LogPosition as LogFrom, LogReader};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use utoipa::ToSchema;

use super::connect;
use crate::ending::WaitQuery;
use crate::extract::{Json, Path, Query};
use crate::log_answer::{self, LogEnd, LogEvent, LogFeeds, LogQuery, LogRange, LogSource};
use crate::output::{LARGEST_OUTPUT, Output};
use crate::problem::{Kind, Problem};
use crate::routes::{Routes, routes};
use crate::sse;
use crate::valid;

pub(super) fn routes() -> Routes {
    Routes::new().routes(routes!(run)).routes(routes!(interrupt)).routes(routes!(get)).routes(routes!(logs))
}

/// A command for the shell of a session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCommand {
    /// The text, any number of lines.
    #[schema(example = "cd /srv && npm test")]
    command: String,
    /// The directory for this command only.
    dir: Option<String>,
    /// Variables that are exported for this command only.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// The time in milliseconds after which the command is ended; the shell goes on.
    timeout_ms: Option<u64>,
    /// The time in milliseconds between SIGTERM and SIGKILL when the command is ended; default 1000.
    grace_ms: Option<u64>,
    /// The most output that is kept, in bytes; default 64 MiB. The oldest output beyond it is lost, and counted.
    output_limit: Option<u64>,
}

/// A command of a session.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionCommand {
    /// The number of the command in its session.
    number: u64,
    /// The end, once the command has ended.
    #[schema(value_type = Option<Object>)]
    end: Option<CommandEnd>,
    /// Standard output, up to 1 MiB; null for a command that was not waited for.
    stdout: Option<Output>,
    /// Standard error, up to 1 MiB; null for a command that was not waited for.
    stderr: Option<Output>,
}

impl RunCommand {
    fn check(self) -> Result<ShellCommand, Problem> {
        for (field, ms) in [("timeout_ms", self.timeout_ms), ("grace_ms", self.grace_ms)] {
            ms.map(|ms| valid::valid_time(field, ms)).transpose()?;
        }
        if self.output_limit.is_some_and(|limit| limit > valid::LARGEST_LOG) {
            return Err(Problem::field("output_limit", "larger than 64 GiB"));
        }
        let run = ShellCommand {
            command: self.command,
            cwd: self.dir,
            env: self.env.into_iter().collect(),
            timeout_ms: self.timeout_ms,
            grace_ms: self.grace_ms,
            output_limit: self.output_limit,
        };
        run.flaw().map_or(Ok(run), |flaw| Err(Problem::new(Kind::InvalidField, flaw)))
    }
}

/// Runs a command in the shell of a session, after the commands that wait. The answer comes at its end. With
/// `Accept: text/event-stream` the output comes as it is written, after an event `accepted` with the number of the
/// command. A client that goes away does not end the command.
#[utoipa::path(
    post, path = "/sandboxes/{id}/sessions/{name}/run", tag = "sessions", operation_id = "runInSession",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("name" = String, Path, description = "the name of the session"), WaitQuery,
    ),
    request_body = RunCommand,
    responses(
        (status = 200, description = "the command has ended; the schema of a stream is that of each event", content(
            (SessionCommand = "application/json"),
            (LogEvent = "text/event-stream"),
        )),
        (status = 202, description = "the command runs or waits", body = SessionCommand),
        Problem,
    )
)]
async fn run(
    State(app): State<AppState>,
    Path((id, name)): Path<(String, String)>,
    headers: HeaderMap,
    Query(query): Query<WaitQuery>,
    Json(request): Json<RunCommand>,
) -> Result<Response, Problem> {
    let run = request.check()?;
    let waits = query.waits()?;
    let permit = app.engine.follower().ok_or_else(log_answer::too_many)?;
    let host = app.engine.call(move |scope| {
        let mut session = connect(scope, &id, name)?;
        let number = session.run(&run)?;
        penfold_sys::crash_point!("serve-command-accepted");
        Ok::<_, Problem>((session, number))
    });
    let (session, number) = host.await??;
    if !waits {
        let command = SessionCommand { number, end: None, stdout: None, stderr: None };
        return Ok((StatusCode::ACCEPTED, axum::Json(command)).into_response());
    }
    if sse::is_accepted(&headers) {
        drop(permit);
        return stream(&app, session, number);
    }
    let (sender, receiver) = oneshot::channel();
    let begun = sent_body::run_beside("session", move || {
        let _permit = permit;
        // The request may be gone.
        let _ = sender.send(finish(session, number));
    });
    begun.map_err(|_| log_answer::too_many())?;
    tokio::select! {
        command = receiver => {
            let command = command.map_err(|_| Problem::new(Kind::Internal, "the wait broke off"))??;
            Ok(axum::Json(command).into_response())
        }
        () = app.drain.begun() => {
            Err(Problem::new(Kind::Draining, format!("the server ends; command {number} goes on")))
        }
    }
}

/// Waits for the end of a command, and reads its output.
fn finish(mut session: ConnectedSession, number: u64) -> Result<SessionCommand, Problem> {
    let end = session.wait_end(number)?;
    Ok(SessionCommand::ended(&session, number, end))
}

impl SessionCommand {
    fn ended(session: &ConnectedSession, number: u64, end: CommandEnd) -> SessionCommand {
        let Outputs { stdout, stderr, .. } = session.outputs(end.number, LARGEST_OUTPUT);
        let of = |bytes: Vec<u8>, all: u64| {
            let is_all = u64::try_from(bytes.len()).is_ok_and(|length| length == all);
            Output::of(bytes, is_all)
        };
        SessionCommand {
            number,
            stdout: Some(of(stdout, end.stdout_bytes)),
            stderr: Some(of(stderr, end.stderr_bytes)),
            end: Some(end),
        }
    }
}

/// Makes the log of a command and its end the source of an answer.
fn source(session: ConnectedSession, reader: LogReader, number: u64) -> LogSource {
    // The log is watched, so the end is looked for rarely.
    let end = move || match session.state(number) {
        CommandState::Unended => None,
        CommandState::Ended(end) => Some(json!(end)),
        CommandState::Lost => Some(Value::Null),
    };
    LogSource { reader, end: LogEnd::new(end) }
}

/// Answers with the output of a command as it comes.
fn stream(app: &AppState, mut session: ConnectedSession, number: u64) -> Result<Response, Problem> {
    let permit = app.engine.follower().ok_or_else(log_answer::too_many)?;
    let writer_app = Arc::clone(app);
    let write = move |sink: &mut sent_body::Sink| {
        let _permit = permit;
        sse::send_event(sink, "accepted", None, &json!({ "number": number }))?;
        sink.flush()?;
        match session.await_log(&writer_app.drain, number, LogFrom::Start) {
            Ok(reader) => log_answer::log_events(
                &writer_app,
                sink,
                source(session, reader, number),
                &LogQuery::default(),
            )
            .map(Some),
            Err(_) if writer_app.drain.has_begun() => {
                sse::send_event(sink, "error", None, &Problem::draining().document()).map(|()| None)
            }
            // A command that could not begin has an end and no log.
            Err(error) => match session.end(number) {
                Some(end) => sse::send_event(sink, "end", None, &end).map(|()| None),
                None => Err(error),
            },
        }
    };
    let (body, _) = sent_body::woken_body(write).map_err(|_| log_answer::too_many())?;
    Ok(sse::event_response(body))
}

/// A command of a session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InterruptCommand {
    /// The number of the command.
    number: u64,
}

/// Ends a command of a session; the shell goes on with its state. A command that waits is not run.
#[utoipa::path(
    post, path = "/sandboxes/{id}/sessions/{name}/interrupt", tag = "sessions", operation_id = "interruptSession",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("name" = String, Path, description = "the name of the session"),
    ),
    request_body = InterruptCommand,
    responses(
        (status = 200, description = "the command has ended", body = SessionCommand),
        Problem,
    )
)]
async fn interrupt(
    State(app): State<AppState>,
    Path((id, name)): Path<(String, String)>,
    Json(InterruptCommand { number }): Json<InterruptCommand>,
) -> Result<axum::Json<SessionCommand>, Problem> {
    let place = app.engine.ender()?;
    // The end comes after the grace of the command.
    let ended = app.engine.wait(place, move |scope| {
        let mut session = connect(scope, &id, name)?;
        session.interrupt(number)?;
        penfold_sys::crash_point!("serve-interrupted");
        finish(session, number)
    });
    Ok(axum::Json(ended.await??))
}

/// Describes a command of a session: the one that runs, those that wait, and the last 16 that have ended.
#[utoipa::path(
    get, path = "/sandboxes/{id}/sessions/{name}/commands/{number}", tag = "sessions", operation_id = "getSessionCommand",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("name" = String, Path, description = "the name of the session"),
        ("number" = u64, Path, description = "the number of the command"),
    ),
    responses(
        (status = 200, description = "the command", body = SessionCommand),
        Problem,
    )
)]
async fn get(
    State(app): State<AppState>,
    Path((id, name, number)): Path<(String, String, u64)>,
) -> Result<axum::Json<SessionCommand>, Problem> {
    let command = app.engine.call(move |scope| {
        let session = connect(scope, &id, name)?;
        if !session.has_command(number) {
            return Err(missing(number));
        }
        let unended = SessionCommand { number, end: None, stdout: None, stderr: None };
        Ok(session.end(number).map_or(unended, |end| SessionCommand::ended(&session, number, end)))
    });
    Ok(axum::Json(command.await??))
}

/// Returns output of a command of a session, as the logs of a sandbox do.
#[utoipa::path(
    get, path = "/sandboxes/{id}/sessions/{name}/commands/{number}/logs", tag = "sessions",
    operation_id = "getSessionCommandLogs",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("name" = String, Path, description = "the name of the session"),
        ("number" = u64, Path, description = "the number of the command"), LogQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "the id of the last event that was received"),
    ),
    responses(
        (status = 200, description = "the output; the schema of a stream is that of each event", content(
            (LogRange = "application/json"),
            (LogEvent = "text/event-stream"),
            (Vec<u8> = "application/octet-stream"),
        )),
        Problem,
    )
)]
async fn logs(
    State(app): State<AppState>,
    Extension(feeds): Extension<LogFeeds>,
    Path((id, name, number)): Path<(String, String, u64)>,
    headers: HeaderMap,
    Query(query): Query<LogQuery>,
) -> Result<Response, Problem> {
    let open = move |scope: &Scope, from: LogFrom| {
        let session = connect(scope, &id, name)?;
        if !session.has_command(number) {
            return Err(missing(number));
        }
        let reader = session.log(number, from).map_err(|error| log_answer::unreadable_log(&error))?;
        Ok(source(session, reader, number))
    };
    log_answer::answer((app, feeds), query, headers, open).await
}

fn missing(number: u64) -> Problem {
    Problem::new(Kind::NotFound, format!("the session has no command {number}"))
}
