//! `/v1/sandboxes`: create, list, get.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use penfold_control::{Resolver, SandboxRef, SandboxView, Scope, view};
use penfold_request::{Containment, LocalField, SandboxSpec};
use penfold_server::ids::{Created, KeyError, create_once};
use penfold_server::{AppState, EngineError, NewSandbox};
use serde::Deserialize;
use utoipa::IntoParams;

use super::extract::{Json, Path, Query};
use super::model::{Sandbox, SandboxPage};
use super::problem::{Kind, Problem};
use super::valid;

use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes {
    Routes::new().routes(routes!(create, list)).routes(routes!(get))
}

/// Checks what a caller asks for.
fn check(mut spec: SandboxSpec) -> Result<NewSandbox, Problem> {
    valid::valid_command("command", &spec.command)?;
    if let Some(name) = &spec.name {
        valid::valid_name("name", name)?;
    }
    valid::valid_labels(&spec.labels)?;
    valid::valid_environment(&spec.env)?;
    if let Some(text) = &spec.signal {
        spec.signal = Some(super::signal::parse_signal("signal", text)?.as_raw().to_string());
    }
    if let Some(dir) = &spec.dir {
        valid::valid_text("dir", dir)?;
    }
    if spec.log_size.is_some_and(|size| size > valid::LARGEST_LOG) {
        return Err(Problem::field("log_size", "larger than 64 GiB"));
    }
    refuse_local_field(&spec)?;
    let limits = valid::valid_limits(spec.memory_bytes, spec.pids, spec.cpus)?;
    if !limits.is_empty() && spec.contain == Some(Containment::Subreaper) {
        return Err(Problem::field("contain", "`subreaper` uses no cgroup, and so has no limits"));
    }
    for (field, ms) in [
        ("timeout_ms", spec.timeout_ms),
        ("lease_ms", spec.lease_ms),
        ("idle_timeout_ms", spec.idle_timeout_ms),
        ("grace_ms", spec.grace_ms),
        ("patience_ms", spec.patience_ms),
    ] {
        ms.map(|ms| valid::valid_time(field, ms)).transpose()?;
    }
    Ok(NewSandbox { spec })
}

/// Refuses what only a file for `penfold run` may have.
fn refuse_local_field(spec: &SandboxSpec) -> Result<(), Problem> {
    let Some(field) = spec.local_field() else { return Ok(()) };
    let (name, why) = match field {
        LocalField::Ready => ("ready", "only `penfold run -d` on this host waits for a probe"),
        LocalField::Restart => ("restart", "only `penfold run -d` on this host restarts a sandbox"),
        LocalField::User => ("user", "a sandbox of a server has the user of the server"),
        LocalField::Unit => ("unit", "a sandbox of a server is in the unit of the server"),
        LocalField::EnvFiles => ("env_files", "only `penfold run` on this host reads files of variables"),
        LocalField::EventLog => {
            ("event_log", "only `penfold run` on this host writes the events to a log of their own")
        }
    };
    Err(Problem::field(name, why))
}

/// Starts a sandbox. The answer comes once its command runs. With an idempotency key, a repeated request gets the
/// sandbox of the first one, as long as that has a record.
#[utoipa::path(
    post, path = "/sandboxes", tag = "sandboxes", operation_id = "createSandbox",
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 128 visible ASCII characters")),
    request_body = SandboxSpec,
    responses(
        (status = 201, description = "the command runs", body = Sandbox),
        (status = 200, description = "an earlier request with this key has started it", body = Sandbox),
        Problem,
    )
)]
async fn create(
    State(app): State<AppState>,
    headers: HeaderMap,
    Json(request): Json<SandboxSpec>,
) -> Result<Response, Problem> {
    let key = key(&headers)?;
    let wanted = check(request)?;
    // A client that goes away does not interrupt this: a repeated request must find the sandbox.
    let task = tokio::spawn(async move {
        let Some(key) = key else { return started(&app, app.engine.create(wanted).await?).await };
        match create_once(&app.engine, key, wanted).await? {
            Created::New(id) => started(&app, id).await,
            Created::Earlier(earlier) => {
                let (known, seen) = *earlier;
                Ok((StatusCode::OK, Sandbox::of(known.intent.as_ref(), seen)))
            }
        }
    });
    let (status, sandbox) = task.await.map_err(|_| EngineError::Abandoned)??;
    let location = HeaderValue::from_str(&format!("/v1/sandboxes/{}", sandbox.id)).ok();
    let mut response = (status, axum::Json(sandbox)).into_response();
    response.headers_mut().extend(location.map(|location| (header::LOCATION, location)));
    Ok(response)
}

/// Describes a sandbox that was just started.
async fn started(app: &AppState, id: String) -> Result<(StatusCode, Sandbox), Problem> {
    if let Ok((_, sandbox)) = find(app, &id).await {
        return Ok((StatusCode::CREATED, sandbox));
    }
    let sentence = format!("sandbox {id} was started, and has ended with its record");
    Err(Problem::new(Kind::HasEnded, sentence))
}

/// The longest idempotency key.
const LONGEST_KEY: usize = 128;

/// Reads the idempotency key of a request.
fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut given = headers.get_all("idempotency-key").iter();
    let Some(value) = given.next() else { return Ok(None) };
    if given.next().is_some() {
        return Err(Problem::new(Kind::BadRequest, "`Idempotency-Key` was sent twice"));
    }
    let text = value.to_str().ok().filter(|text| {
        (1..=LONGEST_KEY).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
    });
    text.map(|key| Some(key.to_owned())).ok_or_else(|| {
        Problem::new(Kind::BadRequest, "`Idempotency-Key` is not 1 to 128 visible ASCII characters")
    })
}

impl From<KeyError> for Problem {
    fn from(error: KeyError) -> Problem {
        match error {
            KeyError::Engine(error) => error.into(),
            KeyError::Reused { .. } => Problem::new(Kind::KeyReused, error.to_string()),
        }
    }
}

/// The sandboxes that a list has.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Only sandboxes with one of these statuses, separated by commas; ended ones too if a status says so.
    status: Option<String>,
    /// Only sandboxes with all of these labels, separated by commas: `key=value`, or `key` with any value.
    label: Option<String>,
    /// Only sandboxes with this name.
    name: Option<String>,
    /// Whether the list has ended sandboxes too.
    #[serde(default)]
    all: bool,
    /// The most sandboxes on a page, 1 to 1000; default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

/// The statuses of sandboxes.
const STATUSES: [&str; 11] = [
    "created",
    "running",
    "paused",
    "waiting",
    "stopping",
    "unkillable",
    "exited",
    "failed",
    "killed",
    "orphaned",
    "lost",
];
const USUAL_PAGE: usize = 100;
const LARGEST_PAGE: usize = 1000;

impl ListQuery {
    fn statuses(&self) -> Result<Vec<&str>, Problem> {
        let statuses: Vec<&str> = self.status.iter().flat_map(|text| text.split(',')).collect();
        match statuses.iter().find(|status| !STATUSES.contains(status)) {
            Some(_) => Err(Problem::field("status", format!("not one of {}", STATUSES.join(", ")))),
            None => Ok(statuses),
        }
    }

    fn matches(&self, scope: &Scope, statuses: &[&str], (known, seen): &(SandboxRef, SandboxView)) -> bool {
        let has_label = |wanted: &str| match wanted.split_once('=') {
            Some((key, value)) => seen.labels.get(key).is_some_and(|given| given == value),
            None => seen.labels.contains_key(wanted),
        };
        (statuses.is_empty() || statuses.contains(&seen.status.as_str()))
            && self.label.iter().flat_map(|text| text.split(',')).all(has_label)
            && self.name.as_ref().is_none_or(|name| scope.means(name, known.held_name().as_deref()))
    }
}

/// Lists sandboxes, the youngest last.
#[utoipa::path(
    get, path = "/sandboxes", tag = "sandboxes", operation_id = "listSandboxes", params(ListQuery),
    responses(
        (status = 200, description = "a page", body = SandboxPage),
        Problem,
    )
)]
async fn list(
    State(app): State<AppState>,
    Query(query): Query<ListQuery>,
) -> Result<axum::Json<SandboxPage>, Problem> {
    let statuses = query.statuses()?;
    let limit = query.limit.unwrap_or(USUAL_PAGE);
    if !(1..=LARGEST_PAGE).contains(&limit) {
        return Err(Problem::field("limit", "not a number from 1 to 1000"));
    }
    let after = query.cursor.as_deref().map(parse_cursor).transpose()?;
    let all = query.all || !statuses.is_empty();
    let mut found = app.engine.list(all).await?;
    found.retain(|one| query.matches(app.engine.scope(), &statuses, one));
    if let Some(after) = after {
        found.retain(|(_, seen)| place(seen) > (after.0, after.1.as_str()));
    }
    let has_more = found.len() > limit;
    found.truncate(limit);
    let next_cursor = found.last().filter(|_| has_more).map(|(_, seen)| {
        let (time, id) = place(seen);
        format!("{time}-{id}")
    });
    let sandboxes = found.into_iter().map(|(known, seen)| Sandbox::of(known.intent.as_ref(), seen)).collect();
    Ok(axum::Json(SandboxPage { sandboxes, next_cursor }))
}

/// The place of a sandbox in a list.
fn place(seen: &SandboxView) -> (u64, &str) {
    (seen.started_at_ms.unwrap_or(0), &seen.id)
}

fn parse_cursor(text: &str) -> Result<(u64, String), Problem> {
    let parsed = text.split_once('-').and_then(|(time, id)| {
        let time = time.parse().ok()?;
        penfold_state::Id::is_short(id).then(|| (time, id.to_owned()))
    });
    parsed.ok_or_else(|| Problem::field("cursor", "not the `next_cursor` of a page"))
}

/// Describes one sandbox.
#[utoipa::path(
    get, path = "/sandboxes/{id}", tag = "sandboxes", operation_id = "getSandbox",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name")),
    responses(
        (status = 200, description = "the sandbox", body = Sandbox),
        Problem,
    )
)]
async fn get(State(app): State<AppState>, Path(id): Path<String>) -> Result<axum::Json<Sandbox>, Problem> {
    Ok(axum::Json(find(&app, &id).await?.1))
}

/// Finds a sandbox and describes it.
pub(super) async fn find(app: &AppState, word: &str) -> Result<(SandboxRef, Sandbox), Problem> {
    let (known, seen) = app.engine.find(word.to_owned()).await?;
    describe(app, known, seen).await
}

async fn describe(
    app: &AppState,
    known: SandboxRef,
    seen: Option<SandboxView>,
) -> Result<(SandboxRef, Sandbox), Problem> {
    let id = known.id.clone();
    let seen = if let Some(seen) = seen {
        Some(seen)
    } else {
        // It is being made or removed: it is there or gone a moment later.
        tokio::time::sleep(Duration::from_millis(30)).await;
        let again = known.clone();
        app.engine.call(move |scope| view::observe_sandbox(&Resolver::new(scope.root()), &again)).await?
    };
    let missing = || Problem::new(Kind::NotFound, format!("no sandbox is called `{id}`"));
    let seen = seen.ok_or_else(missing)?;
    let sandbox = Sandbox::of(known.intent.as_ref(), seen);
    Ok((known, sandbox))
}
