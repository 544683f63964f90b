//! `/v1/sandboxes/{id}/execs`: recorded commands in a running sandbox. Each keeps its output and its end, and may be
//! ended with all that it started.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path as FsPath, PathBuf};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penfold_control::Resolver;
use penfold_control::execs::{self, ExecEnd, ExecError, ExecStart, ExecStatus, ExecView};
use penfold_state::log::From as LogFrom;
use penfold_state::outcome::{ExitStatus, StartFailure};
use penfold_state::wire::Size;
use penfold_state::{Files, Report, error_chain};
use penfold_teardown::{Cause, Survivor};
use rustix::fs::{MemfdFlags, SealFlags};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::ending::WaitQuery;
use super::extract::{Json, OptionalJson, Path, Query};
use super::lease::{TimeoutQuery, unanswered};
use super::log_answer::{self, LogEnd, LogEvent, LogQuery, LogRange, LogSource};
use super::model::EndResult;
use super::problem::{Kind, Problem, ProblemDocument};
use super::valid;
use crate::app::AppState;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(get, forget))
        .routes(routes!(signal))
        .routes(routes!(stop))
        .routes(routes!(kill))
        .routes(routes!(wait))
        .routes(routes!(resize))
        .routes(routes!(logs))
}

/// A command to run in a sandbox.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateExec {
    /// The program and its arguments.
    #[schema(example = json!(["npm", "test"]), min_items = 1)]
    command: Vec<String>,
    /// Changes to the environment of the sandbox; null removes a variable.
    #[serde(default)]
    env: BTreeMap<String, Option<String>>,
    /// The directory in which the command starts; default: that of the sandbox.
    dir: Option<String>,
    /// The standard input, as text.
    stdin: Option<String>,
    /// The standard input, in Base64.
    stdin_base64: Option<String>,
    /// The time limit in milliseconds.
    timeout_ms: Option<u64>,
    /// The polite signal; default: that of the sandbox.
    signal: Option<String>,
    /// The time in milliseconds between the polite signal and SIGKILL.
    grace_ms: Option<u64>,
    /// Labels; a value has at most 256 bytes.
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// The size of the log in bytes; a full log drops the oldest output.
    log_size: Option<u64>,
    /// The size of the terminal, if the command gets one.
    terminal: Option<TerminalSize>,
}

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TerminalSize {
    /// Lines.
    #[schema(value_type = u16)]
    rows: u16,
    /// Columns.
    #[schema(value_type = u16)]
    columns: u16,
}

impl CreateExec {
    fn check(self) -> Result<ExecStart, Problem> {
        valid::command("command", &self.command)?;
        valid::labels(&self.labels)?;
        let mut start = ExecStart::new(self.command);
        for (key, value) in self.env {
            valid::environment(&BTreeMap::from([(key.clone(), value.clone().unwrap_or_default())]))?;
            start.environment.push((key.into(), value.map(OsString::from)));
        }
        if let Some(dir) = self.dir {
            valid::text("dir", &dir)?;
            start.directory = Some(PathBuf::from(dir));
        }
        let input = match (self.stdin, self.stdin_base64) {
            (Some(_), Some(_)) => return Err(Problem::field("stdin_base64", "not together with `stdin`")),
            (Some(text), None) => Some(text.into_bytes()),
            (None, Some(text)) => {
                Some(STANDARD.decode(text).map_err(|error| Problem::field("stdin_base64", error))?)
            }
            (None, None) => None,
        };
        if self.terminal.is_some() && input.is_some() {
            return Err(Problem::field("stdin", "not together with `terminal`"));
        }
        start.stdin = input.map(|input| memory(&input)).transpose()?;
        start.timeout = self.timeout_ms.map(|ms| valid::time("timeout_ms", ms)).transpose()?;
        start.signal = self
            .signal
            .map(|text| super::signal::signal("signal", &text))
            .transpose()?
            .map(rustix::process::Signal::as_raw);
        if let Some(ms) = self.grace_ms {
            start.grace = valid::time("grace_ms", ms)?;
        }
        if let Some(size) = self.log_size {
            if size > valid::LARGEST_LOG {
                return Err(Problem::field("log_size", "larger than 64 GiB"));
            }
            start.log_limit = size;
        }
        start.labels = self.labels;
        start.terminal = self.terminal.map(|size| Size { rows: size.rows, columns: size.columns });
        Ok(start)
    }
}

/// Puts input into memory that nobody can change; the command reads it as a file.
fn memory(input: &[u8]) -> Result<OwnedFd, Problem> {
    let made = || -> std::io::Result<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(rustix::fs::memfd_create(c"penfold-input", flags)?);
        file.write_all(input)?;
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        // Its own open file, at the beginning and only for reading.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        Ok(File::open(path)?.into())
    };
    made().map_err(|error| {
        Problem::new(Kind::Internal, format!("cannot keep the input: {}", error_chain(&error)))
    })
}

/// An exec, as observed at one moment.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Exec {
    /// The number of the exec in its sandbox.
    number: u32,
    /// The command, shortened.
    command: Vec<String>,
    /// The labels.
    labels: BTreeMap<String, String>,
    /// `running` until everything that the exec started was observed gone, then `ended`.
    status: &'static str,
    /// How the command ended: `{"code": N}` or `{"signal": N}`; null if unknown.
    #[schema(value_type = Option<Object>)]
    exit: Option<ExitStatus>,
    /// Why the exec ended.
    #[schema(value_type = Option<String>)]
    cause: Option<Cause>,
    /// The pid of the command.
    pid: Option<i32>,
    /// The start, in milliseconds since 1970.
    started_at_ms: u64,
    /// The end of the command, in milliseconds since 1970.
    ended_at_ms: Option<u64>,
    /// Whether the command has a terminal.
    terminal: bool,
    /// The processes and resources that still exist after the patience.
    #[schema(value_type = Vec<Object>)]
    remaining: Vec<Survivor>,
    /// The report of the verified end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    report: Option<Report>,
}

impl From<ExecView> for Exec {
    fn from(view: ExecView) -> Exec {
        Exec {
            number: view.number,
            command: view.command,
            labels: view.labels,
            status: match view.status {
                ExecStatus::Running => "running",
                ExecStatus::Ended => "ended",
            },
            exit: view.exit,
            cause: view.cause,
            pid: view.leader_pid,
            started_at_ms: view.started_at_ms,
            ended_at_ms: view.ended_at_ms,
            terminal: view.terminal,
            remaining: view.remaining,
            report: view.report,
        }
    }
}

/// The execs of a sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ExecList {
    /// The execs, by number.
    execs: Vec<Exec>,
}

/// The end of an exec.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ExecEnded {
    /// The number of the exec.
    number: u32,
    /// The result.
    result: EndResult,
    /// How the command ended; null if unknown.
    #[schema(value_type = Option<Object>)]
    exit: Option<ExitStatus>,
    /// Why the exec ended.
    #[schema(value_type = Option<String>)]
    cause: Option<Cause>,
    /// The report of the end.
    #[schema(value_type = Option<Object>)]
    report: Option<Report>,
}

/// The end of an exec, as far as it is known.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ExecWaited {
    /// Whether everything that the exec started was observed gone.
    ended: bool,
    /// How the command ended; null if unknown.
    #[schema(value_type = Option<Object>)]
    exit: Option<ExitStatus>,
    /// Why the exec ended.
    #[schema(value_type = Option<String>)]
    cause: Option<Cause>,
    /// The processes and resources that still exist after the patience.
    #[schema(value_type = Vec<Object>)]
    remaining: Vec<Survivor>,
}

/// A signal.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SignalRequest {
    /// A name such as `HUP`, or a number.
    signal: String,
}

/// How to stop an exec.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StopExec {
    /// The polite signal; default: the exec's own.
    signal: Option<String>,
    /// The time in milliseconds between the polite signal and SIGKILL; default: the exec's own.
    grace_ms: Option<u64>,
    /// The time in milliseconds after which survivors are reported; default 10000 and the grace.
    patience_ms: Option<u64>,
}

/// How to kill an exec.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KillExec {
    /// The time in milliseconds after which survivors are reported; default 10000.
    patience_ms: Option<u64>,
}

const USUAL_PATIENCE: Duration = Duration::from_secs(10);
/// The longest grace that is waited for by default.
const USUAL_GRACE: Duration = Duration::from_mins(1);

/// Starts a command in a running sandbox. The answer comes once the command runs.
#[utoipa::path(
    post, path = "/sandboxes/{id}/execs", tag = "execs", operation_id = "createExec",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name")),
    request_body = CreateExec,
    responses(
        (status = 201, description = "the command runs", body = Exec),
        (status = "default", description = "a problem", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
async fn create(
    State(app): State<AppState>,
    Path(id): Path<String>,
    Json(request): Json<CreateExec>,
) -> Result<Response, Problem> {
    let start = request.check()?;
    let created = app.engine.call(move |root| {
        let files = files(root, &id)?;
        let started = execs::start(&files, start).map_err(problem)?;
        let view = execs::get(&files, started.number).ok().flatten();
        let view = view.ok_or_else(|| missing(&files, started.number))?;
        Ok::<_, Problem>((files.name().to_owned(), Exec::from(view)))
    });
    let (id, exec) = created.await??;
    let location = HeaderValue::from_str(&format!("/v1/sandboxes/{id}/execs/{}", exec.number)).ok();
    let mut response = (StatusCode::CREATED, axum::Json(exec)).into_response();
    response.headers_mut().extend(location.map(|location| (header::LOCATION, location)));
    Ok(response)
}

/// Lists the execs of a sandbox, ended ones too.
#[utoipa::path(
    get, path = "/sandboxes/{id}/execs", tag = "execs", operation_id = "listExecs",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name")),
    responses(
        (status = 200, description = "the execs", body = ExecList),
        (status = "default", description = "a problem", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
async fn list(State(app): State<AppState>, Path(id): Path<String>) -> Result<axum::Json<ExecList>, Problem> {
    let listed = app.engine.call(move |root| {
        let views = execs::list(&files(root, &id)?).map_err(|error| unreadable(&error))?;
        Ok::<_, Problem>(ExecList { execs: views.into_iter().map(Exec::from).collect() })
    });
    Ok(axum::Json(listed.await??))
}

/// Describes one exec.
#[utoipa::path(
    get, path = "/sandboxes/{id}/execs/{number}", tag = "execs", operation_id = "getExec",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("number" = u32, Path, description = "the number of the exec"),
    ),
    responses(
        (status = 200, description = "the exec", body = Exec),
        (status = "default", description = "a problem", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
async fn get(
    State(app): State<AppState>,
    Path((id, number)): Path<(String, u32)>,
) -> Result<axum::Json<Exec>, Problem> {
    let exec = app.engine.call(move |root| {
        let files = files(root, &id)?;
        let view = execs::get(&files, number).map_err(|error| unreadable(&error))?;
        view.map(Exec::from).ok_or_else(|| missing(&files, number))
    });
    Ok(axum::Json(exec.await??))
}

/// Removes the record of an exec that has ended, with its output.
#[utoipa::path(
    delete, path = "/sandboxes/{id}/execs/{number}", tag = "execs", operation_id = "deleteExec",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("number" = u32, Path, description = "the number of the exec"),
    ),
    responses(
        (status = 204, description = "the record is gone"),
        (status = "default", description = "a problem", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
async fn forget(
    State(app): State<AppState>,
    Path((id, number)): Path<(String, u32)>,
) -> Result<StatusCode, Problem> {
    app.engine
        .call(move |root| {
            let files = files(root, &id)?;
            match execs::forget(&files, number) {
                Ok(()) => Ok(()),
                Err(ExecError::Refused(reason)) => Err(Problem::new(Kind::NotEnded, reason)),
                Err(error) => Err(problem(error)),
            }
        })
        .await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Sends a signal to the command of an exec.
#[utoipa::path(
    post, path = "/sandboxes/{id}/execs/{number}/signal", tag = "execs", operation_id = "signalExec",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("number" = u32, Path, description = "the number of the exec"),
    ),
    request_body = SignalRequest,
    responses(
        (status = 204, description = "the signal was sent"),
        (status = "default", description = "a problem", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
async fn signal(
    State(app): State<AppState>,
    Path((id, number)): Path<(String, u32)>,
    Json(request): Json<SignalRequest>,
) -> Result<StatusCode, Problem> {
    let signal = super::signal::signal("signal", &request.signal)?.as_raw();
    app.engine
        .call(move |root| {
            let files = running(root, &id, number)?;
            execs::signal(&files, number, signal).map_err(problem)
        })
        .await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Stops an exec: the polite signal, SIGKILL after the grace, and a look that nothing of it is left.
#[utoipa::path(
    post, path = "/sandboxes/{id}/execs/{number}/stop", tag = "execs", operation_id = "stopExec",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("number" = u32, Path, description = "the number of the exec"), WaitQuery,
    ),
    request_body(content = Option<StopExec>),
    responses(
        (status = 200, description = "everything was observed gone", body = ExecEnded),
        (status = 202, description = "the end has begun", body = ExecEnded),
        (status = "default", description = "a problem", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
async fn stop(
    State(app): State<AppState>,
    Path((id, number)): Path<(String, u32)>,
    Query(query): Query<WaitQuery>,
    OptionalJson(request): OptionalJson<StopExec>,
) -> Result<Response, Problem> {
    let signal = request.signal.map(|text| super::signal::signal("signal", &text)).transpose()?;
    let grace = request.grace_ms.map(|ms| valid::time("grace_ms", ms)).transpose()?;
    let patience = request.patience_ms.map(|ms| valid::time("patience_ms", ms)).transpose()?;
    let patience = patience.unwrap_or(USUAL_PATIENCE) + grace.unwrap_or(USUAL_GRACE);
    let signal = signal.map(rustix::process::Signal::as_raw);
    end(app, id, number, query.waits()?, move |files| execs::stop(files, number, signal, grace, patience))
        .await
}

/// Kills an exec: SIGKILL to everything that it started, and a look that nothing of it is left.
#[utoipa::path(
    post, path = "/sandboxes/{id}/execs/{number}/kill", tag = "execs", operation_id = "killExec",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("number" = u32, Path, description = "the number of the exec"), WaitQuery,
    ),
    request_body(content = Option<KillExec>),
    responses(
        (status = 200, description = "everything was observed gone", body = ExecEnded),
        (status = 202, description = "the end has begun", body = ExecEnded),
        (status = "default", description = "a problem", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
async fn kill(
    State(app): State<AppState>,
    Path((id, number)): Path<(String, u32)>,
    Query(query): Query<WaitQuery>,
    OptionalJson(request): OptionalJson<KillExec>,
) -> Result<Response, Problem> {
    let patience = request.patience_ms.map(|ms| valid::time("patience_ms", ms)).transpose()?;
    let patience = patience.unwrap_or(USUAL_PATIENCE);
    end(app, id, number, query.waits()?, move |files| execs::kill(files, number, patience)).await
}

async fn end(
    app: AppState,
    id: String,
    number: u32,
    waits: bool,
    act: impl FnOnce(&Files) -> Result<ExecEnd, ExecError> + Send + 'static,
) -> Result<Response, Problem> {
    let found = app.engine.call(move |root| {
        let files = files(root, &id)?;
        let view = execs::get(&files, number).map_err(|error| unreadable(&error))?;
        let view = view.ok_or_else(|| missing(&files, number))?;
        Ok::<_, Problem>((files, view))
    });
    let (files, view) = found.await??;
    if view.status == ExecStatus::Ended {
        let ExecView { exit, cause, report, .. } = view;
        let ended = ExecEnded { number, result: EndResult::AlreadyGone, exit, cause, report };
        return Ok(axum::Json(ended).into_response());
    }
    let engine_app = app.clone();
    let ending = async move { engine_app.engine.call(move |_| act(&files)).await };
    if !waits {
        tokio::spawn(async move {
            if let Ok(Err(error)) = ending.await {
                tracing::warn!(number, error = error_chain(&error), "an exec could not be ended");
            }
        });
        let result = EndResult::Accepted;
        let ended = ExecEnded { number, result, exit: None, cause: None, report: None };
        return Ok((StatusCode::ACCEPTED, axum::Json(ended)).into_response());
    }
    let ExecEnd { exit, cause, report, remaining, .. } = ending.await?.map_err(problem)?;
    if !remaining.is_empty() {
        return Err(Problem::remaining(format!("something of exec {number} is left"), remaining));
    }
    let ended = ExecEnded { number, result: EndResult::Gone, exit, cause, report };
    Ok(axum::Json(ended).into_response())
}

/// Waits until everything that an exec started is gone. If the time is over before, `ended` is false.
#[utoipa::path(
    get, path = "/sandboxes/{id}/execs/{number}/wait", tag = "execs", operation_id = "waitForExec",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("number" = u32, Path, description = "the number of the exec"), TimeoutQuery,
    ),
    responses(
        (status = 200, description = "the end, or that it has not come", body = ExecWaited),
        (status = "default", description = "a problem", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
async fn wait(
    State(app): State<AppState>,
    Path((id, number)): Path<(String, u32)>,
    Query(query): Query<TimeoutQuery>,
) -> Result<axum::Json<ExecWaited>, Problem> {
    let limit = query.time()?;
    let waiting = app.engine.call(move |root| {
        let files = files(root, &id)?;
        let end = execs::wait(&files, number, Instant::now().checked_add(limit)).map_err(problem)?;
        Ok::<_, Problem>(end.map_or(
            ExecWaited { ended: false, exit: None, cause: None, remaining: Vec::new() },
            |end| ExecWaited {
                ended: end.remaining.is_empty(),
                exit: end.exit,
                cause: end.cause,
                remaining: end.remaining,
            },
        ))
    });
    tokio::select! {
        waited = waiting => Ok(axum::Json(waited??)),
        () = app.drain.begun() => Err(Problem::draining()),
    }
}

/// Sets the size of the terminal of an exec.
#[utoipa::path(
    post, path = "/sandboxes/{id}/execs/{number}/resize", tag = "execs", operation_id = "resizeExec",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("number" = u32, Path, description = "the number of the exec"),
    ),
    request_body = TerminalSize,
    responses(
        (status = 204, description = "the terminal has its new size"),
        (status = "default", description = "a problem", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
async fn resize(
    State(app): State<AppState>,
    Path((id, number)): Path<(String, u32)>,
    Json(TerminalSize { rows, columns }): Json<TerminalSize>,
) -> Result<StatusCode, Problem> {
    app.engine
        .call(move |root| {
            let files = running(root, &id, number)?;
            execs::resize(&files, number, Size { rows, columns }).map_err(problem)
        })
        .await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns output of an exec, as the logs of a sandbox do.
#[utoipa::path(
    get, path = "/sandboxes/{id}/execs/{number}/logs", tag = "execs", operation_id = "getExecLogs",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("number" = u32, Path, description = "the number of the exec"), LogQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "the id of the last event that was received"),
    ),
    responses(
        (status = 200, description = "the output", content(
            (LogRange = "application/json"),
            (LogEvent = "text/event-stream", item_schema = LogEvent),
            (Vec<u8> = "application/octet-stream"),
        )),
        (status = "default", description = "a problem", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
async fn logs(
    State(app): State<AppState>,
    Path((id, number)): Path<(String, u32)>,
    headers: HeaderMap,
    Query(query): Query<LogQuery>,
) -> Result<Response, Problem> {
    let open = move |root: &FsPath, from: LogFrom| source(files(root, &id)?, number, from);
    log_answer::answer(app, query, headers, open).await
}

fn source(files: Files, number: u32, from: LogFrom) -> Result<LogSource, Problem> {
    let reader = execs::log(&files, number, from).map_err(|error| log_answer::unreadable(&error))?;
    Ok(LogSource { reader, end: LogEnd::new(move || verified_end(&files, number)) })
}

/// Returns the end of an exec, if it is verified or its record is gone.
fn verified_end(files: &Files, number: u32) -> Option<Value> {
    let mut seen = execs::get(files, number).ok()?;
    if seen.as_ref().is_some_and(|view| view.status == ExecStatus::Ended && view.report.is_none()) {
        // The record may have been removed during the look. The next look does not take that for an end.
        seen = execs::get(files, number).ok()?;
    }
    let (exit, cause) = match seen {
        Some(view) if view.status == ExecStatus::Running => return None,
        Some(view) => (view.exit, view.cause),
        None => (None, None),
    };
    Some(json!({ "status": "ended", "exit": exit, "cause": cause }))
}

/// Finds the record of a sandbox.
pub(super) fn files(root: &FsPath, word: &str) -> Result<Files, Problem> {
    let known = Resolver::new(root).resolve(word)?;
    known.record.ok_or_else(|| Problem::new(Kind::NotFound, format!("sandbox {} has no record", known.id)))
}

/// Finds the record of a sandbox, if the exec runs.
fn running(root: &FsPath, word: &str, number: u32) -> Result<Files, Problem> {
    let files = files(root, word)?;
    match execs::get(&files, number).map_err(|error| unreadable(&error))? {
        None => Err(missing(&files, number)),
        Some(view) if view.status == ExecStatus::Ended => {
            Err(Problem::new(Kind::HasEnded, format!("exec {number} has ended")))
        }
        Some(_) => Ok(files),
    }
}

fn missing(files: &Files, number: u32) -> Problem {
    Problem::new(Kind::NotFound, format!("there is no exec {number} in sandbox {}", files.name()))
}

fn unreadable(error: &std::io::Error) -> Problem {
    Problem::new(Kind::Internal, format!("cannot read the execs: {}", error_chain(error)))
}

/// The problem of a request about an exec.
pub(super) fn problem(error: ExecError) -> Problem {
    let detail = error_chain(&error);
    match error {
        ExecError::NotFound { .. } => Problem::new(Kind::NotFound, detail),
        ExecError::Refused(_) => Problem::new(Kind::Refused, detail),
        ExecError::Unverified { .. } => Problem::new(Kind::Unverified, detail),
        ExecError::Unanswered(_) => Problem::new(Kind::Unanswered, detail),
        ExecError::Client(error) => unanswered(&error),
        ExecError::Io { .. } => Problem::new(Kind::Internal, detail),
        ExecError::StartFailed { failure, .. } => match failure {
            StartFailure::NotFound => Problem::new(Kind::CommandNotFound, detail),
            StartFailure::NotExecutable(_) => Problem::new(Kind::CommandNotExecutable, detail),
            StartFailure::Directory(errno) => {
                let error = std::io::Error::from_raw_os_error(errno);
                Problem::new(Kind::NotStarted, format!("{detail}: the directory cannot be entered: {error}"))
            }
            StartFailure::Other(sentence) => Problem::new(Kind::NotStarted, format!("{detail}: {sentence}")),
        },
    }
}
