//! `/v1/sandboxes`: create, list, get.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use penfold_control::{Resolver, SandboxRef, View, view};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{Json, Path, Query};
use super::idempotency::{self, KeyedRequest};
use super::model::{Sandbox, SandboxPage};
use super::problem::{Kind, Problem};
use super::valid;
use crate::app::AppState;
use crate::caller::Caller;
use crate::engine::{EngineError, NewSandbox};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(create, list)).routes(routes!(get))
}

/// A sandbox to be started.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "flags of `penfold run`")]
pub(super) struct CreateSandbox {
    /// The program and its arguments.
    #[schema(example = json!(["sh", "-c", "npm start"]), min_items = 1)]
    command: Vec<String>,
    /// The name: 1 to 64 of letters, digits, `_`, `.` and `-`, the first a letter or a digit.
    name: Option<String>,
    /// Labels; a value has at most 256 bytes. Keys that begin with `penfold.` are those of the server.
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// Variables of the command. The server adds a few of its own, such as `PATH` and `HOME`.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Whether the command gets all variables of the server.
    #[serde(default)]
    inherit_env: bool,
    /// The directory in which the command starts; default: that of the server.
    dir: Option<String>,
    /// Whether the sandbox gets an empty directory, which is removed at the end. Without `dir` it is the workspace.
    #[serde(default)]
    scratch: bool,
    /// The time limit in milliseconds.
    timeout_ms: Option<u64>,
    /// The lease in milliseconds: the sandbox is stopped after this time, unless the lease is extended.
    lease_ms: Option<u64>,
    /// The time in milliseconds that the sandbox may be without output and exec.
    idle_timeout_ms: Option<u64>,
    /// The polite signal: a name such as `TERM`, or a number.
    signal: Option<String>,
    /// The time in milliseconds between the polite signal and SIGKILL.
    grace_ms: Option<u64>,
    /// The time in milliseconds that a kill may take until the survivors are reported.
    patience_ms: Option<u64>,
    /// The containment.
    #[serde(default)]
    contain: Containment,
    /// The size of the log in bytes; a full log drops the oldest output.
    log_size: Option<u64>,
    /// Whether the record is removed when the sandbox ends, with log, exit and report.
    #[serde(default)]
    remove_at_end: bool,
    /// Whether the sandbox goes on when its supervisor is killed.
    #[serde(default)]
    survive_supervisor: bool,
    /// Whether the command gets a terminal.
    #[serde(default)]
    terminal: bool,
}

/// The containment: the way in which penfold knows the members of the sandbox.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Containment {
    /// `cgroup` if the host permits, else `subreaper`.
    #[default]
    Auto,
    /// A cgroup of its own.
    Cgroup,
    /// A pid namespace.
    Pidns,
    /// The descendants of the supervisor.
    Subreaper,
}

impl CreateSandbox {
    fn check(self) -> Result<NewSandbox, Problem> {
        valid::command("command", &self.command)?;
        if let Some(name) = &self.name {
            valid::name("name", name)?;
        }
        valid::labels(&self.labels)?;
        valid::environment(&self.env)?;
        let signal = self.signal.map(|text| super::signal::signal("signal", &text)).transpose()?;
        let time = |field, ms: Option<u64>| ms.map(|ms| valid::time(field, ms)).transpose();
        if let Some(dir) = &self.dir {
            valid::text("dir", dir)?;
        }
        if self.log_size.is_some_and(|size| size > valid::LARGEST_LOG) {
            return Err(Problem::field("log_size", "larger than 64 GiB"));
        }
        Ok(NewSandbox {
            command: self.command,
            name: self.name,
            labels: self.labels,
            environment: self.env,
            inherits_environment: self.inherit_env,
            directory: self.dir.map(PathBuf::from),
            timeout: time("timeout_ms", self.timeout_ms)?,
            ttl: time("lease_ms", self.lease_ms)?,
            idle: time("idle_timeout_ms", self.idle_timeout_ms)?,
            grace: time("grace_ms", self.grace_ms)?,
            patience: time("patience_ms", self.patience_ms)?,
            signal: signal.map(rustix::process::Signal::as_raw),
            contain: Some(match self.contain {
                Containment::Auto => "auto",
                Containment::Cgroup => "cgroup",
                Containment::Pidns => "pidns",
                Containment::Subreaper => "subreaper",
            }),
            log_limit: self.log_size,
            remove: self.remove_at_end,
            scratch: self.scratch,
            keep: self.survive_supervisor,
            terminal: self.terminal,
            token: None,
        })
    }
}

/// Starts a sandbox. The answer comes once its command runs. With an idempotency key, a repeated request gets the
/// sandbox of the first one, as long as that has a record.
#[utoipa::path(
    post, path = "/sandboxes", tag = "sandboxes", operation_id = "createSandbox",
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 128 visible ASCII characters")),
    request_body = CreateSandbox,
    responses(
        (status = 201, description = "the command runs", body = Sandbox),
        (status = 200, description = "an earlier request with this key has started it", body = Sandbox),
        Problem,
    )
)]
async fn create(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Json(request): Json<CreateSandbox>,
) -> Result<Response, Problem> {
    let key = idempotency::key(&headers)?;
    let mut wanted = request.check()?;
    wanted.token = caller.token;
    // A client that goes away does not interrupt this: a repeated request must find the sandbox.
    let task = tokio::spawn(async move {
        let Some(key) = key else { return start(&app, wanted).await };
        let _turn = app.engine.creating().lock().await;
        let request = KeyedRequest::label(key, &mut wanted);
        match idempotency::find(&app, &request).await? {
            Some(found) => Ok((StatusCode::OK, found)),
            None => start(&app, wanted).await,
        }
    });
    let (status, sandbox) = task.await.map_err(|_| EngineError::Abandoned)??;
    let location = HeaderValue::from_str(&format!("/v1/sandboxes/{}", sandbox.id)).ok();
    let mut response = (status, axum::Json(sandbox)).into_response();
    response.headers_mut().extend(location.map(|location| (header::LOCATION, location)));
    Ok(response)
}

async fn start(app: &AppState, wanted: NewSandbox) -> Result<(StatusCode, Sandbox), Problem> {
    let id = app.engine.create(wanted).await?;
    if let Ok((_, sandbox)) = find(app, &id).await {
        return Ok((StatusCode::CREATED, sandbox));
    }
    let sentence = format!("sandbox {id} was started, and has ended with its record");
    Err(Problem::new(Kind::HasEnded, sentence))
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
const STATUSES: [&str; 9] =
    ["created", "running", "stopping", "unkillable", "exited", "failed", "killed", "orphaned", "lost"];
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

    fn matches(&self, statuses: &[&str], seen: &View) -> bool {
        let has_label = |wanted: &str| match wanted.split_once('=') {
            Some((key, value)) => seen.labels.get(key).is_some_and(|given| given == value),
            None => seen.labels.contains_key(wanted),
        };
        (statuses.is_empty() || statuses.contains(&seen.status.as_str()))
            && self.label.iter().flat_map(|text| text.split(',')).all(has_label)
            && self.name.as_ref().is_none_or(|name| seen.name.as_ref() == Some(name))
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
    found.retain(|(_, seen)| query.matches(&statuses, seen));
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
fn place(seen: &View) -> (u64, &str) {
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
    seen: Option<View>,
) -> Result<(SandboxRef, Sandbox), Problem> {
    let id = known.id.clone();
    let seen = if let Some(seen) = seen {
        Some(seen)
    } else {
        // It is being made or removed: it is there or gone a moment later.
        tokio::time::sleep(Duration::from_millis(30)).await;
        let again = known.clone();
        app.engine.call(move |root| view::view(&Resolver::new(root), &again)).await?
    };
    let missing = || Problem::new(Kind::NotFound, format!("no sandbox is called `{id}`"));
    let seen = seen.ok_or_else(missing)?;
    let sandbox = Sandbox::of(known.intent.as_ref(), seen);
    Ok((known, sandbox))
}
