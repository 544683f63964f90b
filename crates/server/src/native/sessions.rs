//! `/v1/sandboxes/{id}/sessions`: persistent shells. A session is held by a host inside the sandbox, which is an exec of
//! the sandbox; the server only talks to it.

mod commands;
mod place;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path as FsPath, PathBuf};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use penfold_control::execs::{self, ExecStart, ExecStatus, ExecView};
use penfold_session::{Client, ClientError};
use penfold_state::log::{Entry, From as LogFrom, Stream};
use penfold_state::{Files, Report, error_chain};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::place::{DirectoryPlace, Held};
use super::execs::{files, make_room, problem as exec_problem};
use super::extract::{Json, Path};
use super::model::EndResult;
use super::problem::{Kind, Problem};
use super::valid;
use crate::app::AppState;
use crate::engine::EngineError;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(create, list)).routes(routes!(get, delete)).merge(commands::routes())
}

/// The label of the exec that holds a session.
const LABEL: &str = "penfold.session";
/// The time that a new session may take.
const START: Duration = Duration::from_secs(10);
/// The time that a session host may take to answer.
const ANSWER: Duration = Duration::from_secs(2);
/// The time that the kill of a session may take until survivors are reported.
const PATIENCE: Duration = Duration::from_secs(10);

/// A session to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateSession {
    /// The name: 1 to 64 of letters, digits, `_`, `.` and `-`, the first a letter or a digit.
    name: String,
    /// The first directory; default: that of the sandbox.
    dir: Option<String>,
    /// Changes to the environment of the sandbox; null removes a variable.
    #[serde(default)]
    env: BTreeMap<String, Option<String>>,
    /// The shell, a bash; default `bash`.
    shell: Option<String>,
}

/// A session.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Session {
    /// The name.
    name: String,
    /// The number of the exec that holds it.
    exec: u32,
    /// The start, in milliseconds since 1970.
    started_at_ms: u64,
}

/// The living sessions of a sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SessionList {
    /// The sessions, the youngest last.
    sessions: Vec<Session>,
}

/// The end of a session.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SessionEnded {
    /// The name.
    name: String,
    /// The result.
    result: EndResult,
    /// The report of the end.
    #[schema(value_type = Option<Object>)]
    report: Option<Report>,
}

/// Makes a session: a bash that keeps directory, variables, functions and background jobs from command to command.
#[utoipa::path(
    post, path = "/sandboxes/{id}/sessions", tag = "sessions", operation_id = "createSession",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name")),
    request_body = CreateSession,
    responses(
        (status = 201, description = "the shell is ready", body = Session),
        Problem,
    )
)]
async fn create(
    State(app): State<AppState>,
    Path(id): Path<String>,
    Json(request): Json<CreateSession>,
) -> Result<Response, Problem> {
    valid::name("name", &request.name)?;
    let mut environment = Vec::new();
    for (key, value) in request.env {
        valid::environment(&BTreeMap::from([(key.clone(), value.clone().unwrap_or_default())]))?;
        environment.push((OsString::from(key), value.map(OsString::from)));
    }
    for (field, text) in [("dir", &request.dir), ("shell", &request.shell)] {
        text.iter().try_for_each(|text| valid::text(field, text))?;
    }
    let (name, shell) = (request.name, request.shell);
    let directory = request.dir.map(PathBuf::from);
    let program = app.config.program.clone();
    let begin_session = move |root: &FsPath| {
        let files = files(root, &id)?;
        let place = DirectoryPlace::of(&files).map_err(|problem| problem.beside_end(&files))?;
        let mut command = place.host_words(program.into(), root);
        command.extend([OsString::from(format!("--name={name}"))]);
        command.extend(shell.map(|shell| OsString::from(format!("--shell={shell}"))));
        let labels = BTreeMap::from([(LABEL.to_owned(), name.clone())]);
        let own_user = place == DirectoryPlace::OfUser;
        let start = ExecStart { environment, directory, labels, own_user, ..ExecStart::new(command) };
        let session = begin(&files, &name, start, place).map_err(|problem| problem.beside_end(&files))?;
        Ok::<_, Problem>((files.name().to_owned(), session))
    };
    // One at a time: the loser of a race would connect to the host of the winner. A client that goes away does not end
    // the turn.
    let made = tokio::spawn(async move {
        let _turn = app.engine.creating().lock().await;
        app.engine.call(begin_session).await
    });
    let (id, session) = made.await.map_err(|_| EngineError::Abandoned)???;
    let location = HeaderValue::from_str(&format!("/v1/sandboxes/{id}/sessions/{}", session.name)).ok();
    let mut response = (StatusCode::CREATED, axum::Json(session)).into_response();
    response.headers_mut().extend(location.map(|location| (header::LOCATION, location)));
    Ok(response)
}

fn begin(files: &Files, name: &str, start: ExecStart, place: DirectoryPlace) -> Result<Session, Problem> {
    if let Some(view) = living(files, name)? {
        let sentence = format!("exec {} holds a session with this name", view.number);
        return Err(Problem::new(Kind::Exists, sentence));
    }
    make_room(files);
    let number = execs::start(files, start).map_err(exec_problem)?.number;
    penfold_sys::crash_point!("serve-host-started");
    let has_ended = || files.has_ended() || execs::has_ended(files, number);
    let connected = place.connect(files, Held { holder: Some(number), name }, START, has_ended);
    let view = execs::get(files, number).ok().flatten().filter(|view| view.status == ExecStatus::Running);
    match (connected, view) {
        (Ok(_), Some(view)) => Ok(Session::of(&view, name)),
        // Another host was first, or this one cannot start its shell.
        (Ok(_), None) => Err(Problem::new(Kind::Exists, said(files, number))),
        (Err(error), _) => {
            let sentence = format!("{}: {}", error_chain(&error), said(files, number));
            let _ = execs::kill_exec(files, number, PATIENCE);
            Err(Problem::new(Kind::NotStarted.or_no_space(&sentence), sentence))
        }
    }
}

/// What a session host said on standard error.
fn said(files: &Files, number: u32) -> String {
    let mut text = Vec::new();
    if let Ok(mut reader) = execs::log(files, number, LogFrom::Last { lines: 3, of: Some(Stream::Stderr) }) {
        while let Ok(Some(entry)) = reader.next_entry() {
            if let Entry::Data { bytes, .. } = entry {
                text.extend_from_slice(bytes);
            }
        }
    }
    String::from_utf8_lossy(&text).trim().to_owned()
}

/// Lists the living sessions of a sandbox.
#[utoipa::path(
    get, path = "/sandboxes/{id}/sessions", tag = "sessions", operation_id = "listSessions",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name")),
    responses(
        (status = 200, description = "the sessions", body = SessionList),
        Problem,
    )
)]
async fn list(
    State(app): State<AppState>,
    Path(id): Path<String>,
) -> Result<axum::Json<SessionList>, Problem> {
    let listed = app.engine.call(move |root| {
        let found =
            holders(&files(root, &id)?)?.into_iter().filter(|view| view.status == ExecStatus::Running);
        let sessions = found.map(|view| {
            let name = view.labels.get(LABEL).cloned().unwrap_or_default();
            Session::of(&view, &name)
        });
        Ok::<_, Problem>(SessionList { sessions: sessions.collect() })
    });
    Ok(axum::Json(listed.await??))
}

/// Describes one session.
#[utoipa::path(
    get, path = "/sandboxes/{id}/sessions/{name}", tag = "sessions", operation_id = "getSession",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("name" = String, Path, description = "the name of the session"),
    ),
    responses(
        (status = 200, description = "the session", body = Session),
        Problem,
    )
)]
async fn get(
    State(app): State<AppState>,
    Path((id, name)): Path<(String, String)>,
) -> Result<axum::Json<Session>, Problem> {
    let session = app.engine.call(move |root| {
        let view = living(&files(root, &id)?, &name)?.ok_or_else(|| missing(&name))?;
        Ok::<_, Problem>(Session::of(&view, &name))
    });
    Ok(axum::Json(session.await??))
}

/// Kills a session with everything that it started, also while a command runs.
#[utoipa::path(
    delete, path = "/sandboxes/{id}/sessions/{name}", tag = "sessions", operation_id = "deleteSession",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("name" = String, Path, description = "the name of the session"),
    ),
    responses(
        (status = 200, description = "everything was observed gone", body = SessionEnded),
        Problem,
    )
)]
async fn delete(
    State(app): State<AppState>,
    Path((id, name)): Path<(String, String)>,
) -> Result<axum::Json<SessionEnded>, Problem> {
    let place = app.engine.ender()?;
    let ended = app.engine.wait(place, move |root| end(&files(root, &id)?, &name));
    Ok(axum::Json(ended.await??))
}

fn end(files: &Files, name: &str) -> Result<SessionEnded, Problem> {
    let mut held: Vec<ExecView> = holders(files)?;
    held.retain(|view| view.labels.get(LABEL).is_some_and(|held| held == name));
    let last = held.pop().ok_or_else(|| missing(name))?;
    if last.status == ExecStatus::Ended {
        let result = EndResult::AlreadyGone;
        return Ok(SessionEnded { name: name.to_owned(), result, report: last.report });
    }
    penfold_sys::crash_point!("serve-host-kill-wanted");
    let end = execs::kill_exec(files, last.number, PATIENCE).map_err(exec_problem)?;
    penfold_sys::crash_point!("serve-host-killed");
    if !end.remaining.is_empty() {
        return Err(Problem::remaining(format!("something of session `{name}` is left"), end.remaining));
    }
    Ok(SessionEnded { name: name.to_owned(), result: EndResult::Gone, report: end.report })
}

impl Session {
    fn of(view: &ExecView, name: &str) -> Session {
        Session { name: name.to_owned(), exec: view.number, started_at_ms: view.started_at_ms }
    }
}

/// The execs that hold or held sessions, by number.
fn holders(files: &Files) -> Result<Vec<ExecView>, Problem> {
    let mut views = execs::list(files).map_err(|error| {
        Problem::new(Kind::Internal, format!("cannot read the execs: {}", error_chain(&error)))
    })?;
    views.retain(|view| view.labels.contains_key(LABEL));
    Ok(views)
}

/// The exec that holds a session.
fn living(files: &Files, name: &str) -> Result<Option<ExecView>, Problem> {
    let mut held = holders(files)?;
    held.retain(|view| {
        view.status == ExecStatus::Running && view.labels.get(LABEL).is_some_and(|held| held == name)
    });
    Ok(held.pop())
}

/// Connects to a session.
fn connect(root: &FsPath, id: &str, name: &str) -> Result<(Files, Client), Problem> {
    valid::name("name", name)?;
    let files = files(root, id)?;
    let place = DirectoryPlace::of(&files)?;
    let holder =
        if place == DirectoryPlace::InJail { living(&files, name)?.map(|view| view.number) } else { None };
    let held = Held { holder, name };
    match place.connect(&files, held, ANSWER, || true) {
        Ok(client) => return Ok((files, client)),
        Err(ClientError::Missing { .. }) => {}
        Err(error) => return Err(problem(&error)),
    }
    // A host that has just been started, or whose backlog is full, is connected to a moment later.
    if living(&files, name)?.is_none() {
        return Err(missing(name));
    }
    match place.connect(&files, held, ANSWER, || files.has_ended()) {
        Ok(client) => Ok((files, client)),
        Err(error) => Err(problem(&error)),
    }
}

fn missing(name: &str) -> Problem {
    Problem::new(Kind::NotFound, format!("there is no session `{name}`"))
}

/// The problem of a request to a session host.
fn problem(error: &ClientError) -> Problem {
    let kind = match error {
        ClientError::Missing { .. } => Kind::NotFound,
        ClientError::Silent { .. } | ClientError::TimedOut { .. } => Kind::Unanswered,
        // A session may be deleted at any time: no failure of the server.
        ClientError::Refused(_) | ClientError::Gone { .. } => Kind::Refused,
        ClientError::Io { .. } => Kind::Internal,
    };
    let detail = error_chain(error);
    Problem::new(kind.or_no_space(&detail), detail)
}
