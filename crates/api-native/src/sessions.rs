//! `/v1/sandboxes/{id}/sessions`: persistent shells. A session is held by a host inside the sandbox, which is an exec of
//! the sandbox; the server only talks to it.

mod commands;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use penfold_control::Scope;
use penfold_server::AppState;
use penfold_server::records::find_record;
use penfold_server::sessions::{
    ConnectedSession, NewSession, SessionEnding, SessionError, ShellSession, create_session, end_session,
    find_session, list_sessions,
};
use penfold_session::SessionClientError;
use penfold_state::{Report, error_chain};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::execs::exec_problem;
use super::extract::{Json, Path};
use super::model::EndResult;
use super::problem::{Kind, Problem};
use super::valid;

use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes {
    Routes::new().routes(routes!(create, list)).routes(routes!(get, delete)).merge(commands::routes())
}

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
    valid::valid_name("name", &request.name)?;
    let mut environment = Vec::new();
    for (key, value) in request.env {
        valid::valid_environment(&BTreeMap::from([(key.clone(), value.clone().unwrap_or_default())]))?;
        environment.push((OsString::from(key), value.map(OsString::from)));
    }
    for (field, text) in [("dir", &request.dir), ("shell", &request.shell)] {
        text.iter().try_for_each(|text| valid::valid_text(field, text))?;
    }
    let CreateSession { name, shell, dir, .. } = request;
    let new = NewSession { name, directory: dir.map(PathBuf::from), environment, shell };
    let (id, session) = create_session(&app, id, new).await?;
    let session = Session::from(session);
    let location = HeaderValue::from_str(&format!("/v1/sandboxes/{id}/sessions/{}", session.name)).ok();
    let mut response = (StatusCode::CREATED, axum::Json(session)).into_response();
    response.headers_mut().extend(location.map(|location| (header::LOCATION, location)));
    Ok(response)
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
    let listed = app.engine.call(move |scope| {
        let sessions = list_sessions(&find_record(scope, &id)?)?;
        Ok::<_, Problem>(SessionList { sessions: sessions.into_iter().map(Session::from).collect() })
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
    let session = app.engine.call(move |scope| find_session(&find_record(scope, &id)?, &name)).await??;
    Ok(axum::Json(session.into()))
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
    let named = name.clone();
    let ending = app.engine.wait(place, move |scope| end_session(&find_record(scope, &id)?, &named));
    let (result, report) = match ending.await?? {
        SessionEnding::AlreadyGone(report) => (EndResult::AlreadyGone, report),
        SessionEnding::Gone(report) => (EndResult::Gone, report),
    };
    Ok(axum::Json(SessionEnded { name, result, report }))
}

impl From<ShellSession> for Session {
    fn from(session: ShellSession) -> Session {
        let ShellSession { name, holder, started_at_ms } = session;
        Session { name, exec: holder, started_at_ms }
    }
}

/// Connects to a session.
fn connect(scope: &Scope, id: &str, name: String) -> Result<ConnectedSession, Problem> {
    valid::valid_name("name", &name)?;
    Ok(ConnectedSession::connect(find_record(scope, id)?, name)?)
}

impl From<SessionError> for Problem {
    fn from(error: SessionError) -> Problem {
        let detail = error_chain(&error);
        match error {
            SessionError::Engine(error) => error.into(),
            SessionError::Record(error) => error.into(),
            SessionError::UnreadableRecord(_) | SessionError::UnreadableExecs(_) => {
                Problem::new(Kind::Internal, detail)
            }
            SessionError::HasEnded { id } => Problem::ended(&id),
            SessionError::Exists { .. } | SessionError::NotAlone(_) => Problem::new(Kind::Exists, detail),
            SessionError::NotStarted(_) => Problem::new(Kind::NotStarted.or_no_space(&detail), detail),
            SessionError::Missing { .. } => Problem::new(Kind::NotFound, detail),
            SessionError::Exec(error) => exec_problem(error),
            SessionError::Client(error) => Problem::new(client_kind(&error).or_no_space(&detail), detail),
            SessionError::Left { survivors, .. } => Problem::remaining(detail, survivors),
        }
    }
}

/// The kind of problem that a failed request to a session host is.
fn client_kind(error: &SessionClientError) -> Kind {
    match error {
        SessionClientError::Missing { .. } => Kind::NotFound,
        SessionClientError::Silent { .. } | SessionClientError::TimedOut { .. } => Kind::Unanswered,
        // A session may be deleted at any time: no failure of the server.
        SessionClientError::Refused(_) | SessionClientError::Gone { .. } => Kind::Refused,
        SessionClientError::Io { .. } => Kind::Internal,
    }
}
