//! Commands of a session: run, interrupt, read the end and the output.

use std::collections::BTreeMap;
use std::io;
use std::path::Path as FsPath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penfold_session::{Client, ClientError, CommandEnd, Run};
use penfold_state::Files;
use penfold_state::log::{Entry, From as LogFrom, LogError, Reader, Stream};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{connect, living, problem};
use crate::app::{App, AppState};
use crate::native::ending::WaitQuery;
use crate::native::extract::{Json, Path, Query};
use crate::native::log_answer::{self, LogEnd, LogEvent, LogQuery, LogRange, LogSource};
use crate::native::problem::{Kind, Problem};
use crate::native::valid;
use crate::{sent_body, sse};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(run))
        .routes(routes!(interrupt))
        .routes(routes!(get))
        .routes(routes!(logs))
}

/// A command for the shell of a session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::native) struct RunCommand {
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
pub(in crate::native) struct SessionCommand {
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

/// Output of a command.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(in crate::native) struct Output {
    /// The bytes, if they are UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// The bytes in Base64, if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    /// Whether this is all of the output. The log of the command has the rest.
    complete: bool,
}

/// The most bytes of a stream in an answer.
const LARGEST_OUTPUT: usize = 1 << 20;
/// The pauses between looks for the begin of a command, from the first to the longest.
const FIRST: Duration = Duration::from_millis(1);
const LAST: Duration = Duration::from_millis(50);

impl RunCommand {
    fn check(self) -> Result<Run, Problem> {
        for (field, ms) in [("timeout_ms", self.timeout_ms), ("grace_ms", self.grace_ms)] {
            ms.map(|ms| valid::time(field, ms)).transpose()?;
        }
        if self.output_limit.is_some_and(|limit| limit > valid::LARGEST_LOG) {
            return Err(Problem::field("output_limit", "larger than 64 GiB"));
        }
        let run = Run {
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
        (status = 200, description = "the command has ended", content(
            (SessionCommand = "application/json"),
            ("text/event-stream", item_schema = LogEvent),
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
    let host = app.engine.call(move |root| {
        let (files, mut client) = connect(root, &id, &name)?;
        let number = client.run(&run).map_err(|error| problem(&error))?;
        penfold_sys::crash_point!("serve-command-accepted");
        Ok::<_, Problem>((files, client, number, name))
    });
    let (files, client, number, name) = host.await??;
    if !waits {
        let command = SessionCommand { number, end: None, stdout: None, stderr: None };
        return Ok((StatusCode::ACCEPTED, axum::Json(command)).into_response());
    }
    if sse::is_accepted(&headers) {
        drop(permit);
        return stream(&app, SessionConnection { files, client, name }, number);
    }
    let (sender, receiver) = oneshot::channel();
    let begun = sent_body::beside("session", move || {
        let _permit = permit;
        // The request may be gone.
        let _ = sender.send(finish(client, number));
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
fn finish(mut client: Client, number: u64) -> Result<SessionCommand, Problem> {
    let end = client.wait_end(number, None).map_err(|error| problem(&error))?;
    let (stdout, stderr) = outputs(&client, &end);
    Ok(SessionCommand { number, end: Some(end), stdout: Some(stdout), stderr: Some(stderr) })
}

fn outputs(client: &Client, end: &CommandEnd) -> (Output, Output) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    if let Ok(mut reader) = client.log(end.number, LogFrom::Start) {
        while let Ok(Some(entry)) = reader.next_entry() {
            if let Entry::Data { stream, bytes, .. } = entry {
                let kept = match stream {
                    Stream::Stdout => &mut out,
                    Stream::Stderr => &mut err,
                };
                let room = LARGEST_OUTPUT.saturating_sub(kept.len()).min(bytes.len());
                kept.extend_from_slice(bytes.get(..room).unwrap_or_default());
            }
        }
    }
    (Output::of(out, end.stdout_bytes), Output::of(err, end.stderr_bytes))
}

impl Output {
    fn of(bytes: Vec<u8>, all: u64) -> Output {
        let complete = u64::try_from(bytes.len()).is_ok_and(|length| length == all);
        match String::from_utf8(bytes) {
            Ok(text) => Output { text: Some(text), base64: None, complete },
            Err(error) => Output { text: None, base64: Some(STANDARD.encode(error.as_bytes())), complete },
        }
    }
}

/// A connection to a session host, with the facts that show its end.
struct SessionConnection {
    files: Files,
    client: Client,
    name: String,
}

impl SessionConnection {
    /// Returns the end of a command, or null if the command will have no end.
    fn end(&self, number: u64) -> Option<Value> {
        if let Some(end) = self.client.end(number) {
            return Some(json!(end));
        }
        let has_no_host = self.client.command_dir(number).is_err()
            || self.files.has_ended()
            || matches!(living(&self.files, &self.name), Ok(None));
        // The host may have written the end before it went away.
        has_no_host.then(|| json!(self.client.end(number)))
    }

    /// Waits for the log of a command, which is made when the command begins.
    fn await_log(&mut self, app: &App, number: u64, from: LogFrom) -> io::Result<Reader> {
        let mut pause = FIRST;
        loop {
            match self.client.log(number, from) {
                Err(LogError::Missing) => {}
                opened => return opened.map_err(io::Error::other),
            }
            if app.drain.has_begun() {
                return Err(io::Error::other("the server ends"));
            }
            match self.client.wait_end(number, Instant::now().checked_add(pause)) {
                Ok(_) => return self.client.log(number, from).map_err(io::Error::other),
                Err(ClientError::TimedOut { .. }) => pause = (pause * 2).min(LAST),
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }

    fn source(self, reader: Reader, number: u64) -> LogSource {
        // The log is watched, so the end is looked for rarely.
        LogSource { reader, end: LogEnd::new(move || self.end(number)) }
    }
}

/// Answers with the output of a command as it comes.
fn stream(app: &AppState, mut host: SessionConnection, number: u64) -> Result<Response, Problem> {
    let permit = app.engine.follower().ok_or_else(log_answer::too_many)?;
    let writer_app = Arc::clone(app);
    let write = move |sink: &mut sent_body::Sink| {
        let _permit = permit;
        sse::send(sink, "accepted", None, &json!({ "number": number }))?;
        sink.flush()?;
        match host.await_log(&writer_app, number, LogFrom::Start) {
            Ok(reader) => {
                log_answer::events(&writer_app, sink, host.source(reader, number), &LogQuery::default())
            }
            Err(_) if writer_app.drain.has_begun() => {
                sse::send(sink, "error", None, &Problem::draining().document())
            }
            // A command that could not begin has an end and no log.
            Err(error) => match host.client.end(number) {
                Some(end) => sse::send(sink, "end", None, &end),
                None => Err(error),
            },
        }
    };
    let (body, _) = sent_body::woken_body(write).map_err(|_| log_answer::too_many())?;
    Ok(sse::response(body))
}

/// A command of a session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::native) struct InterruptCommand {
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
    let ended = app.engine.wait(place, move |root| {
        let (_, mut client) = connect(root, &id, &name)?;
        if let Err(error) = client.interrupt(number)
            && client.end(number).is_none()
        {
            return Err(problem(&error));
        }
        penfold_sys::crash_point!("serve-interrupted");
        finish(client, number)
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
    let command = app.engine.call(move |root| {
        let (_, client) = connect(root, &id, &name)?;
        client.command_dir(number).map_err(|_| missing(number))?;
        let end = client.end(number);
        let outputs = end.as_ref().map(|end| outputs(&client, end));
        let (stdout, stderr) = outputs.unzip();
        Ok::<_, Problem>(SessionCommand { number, end, stdout, stderr })
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
        (status = 200, description = "the output", content(
            (LogRange = "application/json"),
            ("text/event-stream", item_schema = LogEvent),
            (Vec<u8> = "application/octet-stream"),
        )),
        Problem,
    )
)]
async fn logs(
    State(app): State<AppState>,
    Path((id, name, number)): Path<(String, String, u64)>,
    headers: HeaderMap,
    Query(query): Query<LogQuery>,
) -> Result<Response, Problem> {
    let open = move |root: &FsPath, from: LogFrom| {
        let (files, client) = connect(root, &id, &name)?;
        client.command_dir(number).map_err(|_| missing(number))?;
        let reader = client.log(number, from).map_err(|error| log_answer::unreadable(&error))?;
        Ok(SessionConnection { files, client, name }.source(reader, number))
    };
    log_answer::answer(app, query, headers, open).await
}

fn missing(number: u64) -> Problem {
    Problem::new(Kind::NotFound, format!("the session has no command {number}"))
}
