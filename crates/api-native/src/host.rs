//! `/v1/doctor` and `/v1/gc`: the features of the host, and the remains of ended sandboxes.

use std::ffi::OsString;
use std::time::Duration;

use axum::extract::State;
use penfold_control::Scope;
use penfold_doctor::leaks::{self, GcRules, KeepReason, Leak, Survey, Thing, USUAL_AGE, named_sandbox};
use penfold_server::AppState;
use penfold_server::records::is_own_remainder;
use penfold_state::error_chain;
use penfold_state::names;
use penfold_teardown::Findings;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::extract::OptionalJson;
use super::problem::{Kind, Problem};
use super::valid;

use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes {
    Routes::new().routes(routes!(doctor)).routes(routes!(gc))
}

/// Checks the features of the host, and searches for leaks. Changes nothing. The answer is that of
/// `penfold doctor --json`: `clean`, `abilities`, `levels`, `leaks` and more.
#[utoipa::path(
    get, path = "/doctor", tag = "host", operation_id = "getDoctor",
    responses(
        (status = 200, description = "the result", body = Object),
        Problem,
    )
)]
async fn doctor(State(app): State<AppState>) -> Result<axum::Json<Value>, Problem> {
    if !app.engine.scope().has_unowned() {
        return Err(Problem::new(Kind::Forbidden, "the host is checked with the token of an admin"));
    }
    // One at a time: the checks create cgroups and processes.
    let _turn = app.engine.checking().lock().await;
    let words = ["doctor", "--json"].map(OsString::from).to_vec();
    let output = app.engine.execute(words).await?;
    serde_json::from_slice(&output.stdout).map(axum::Json).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        Problem::new(Kind::Internal, format!("cannot check this host: {}", said.trim()))
    })
}

/// What to remove.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GcRequest {
    /// Whether to list only, and change nothing.
    #[serde(default)]
    dry_run: bool,
    /// Keep leaks and records of ended sandboxes that are younger than this, in milliseconds; default 600000. Sandboxes
    /// without a supervisor are ended at any age.
    older_than_ms: Option<u64>,
    /// Only leaks of these kinds: `record`, `processes`, `cgroup`, `directory`, `ended`, `name`, `file`, `socket` or
    /// `unreachable`.
    #[serde(default)]
    kinds: Vec<String>,
    /// Only leaks of these sandboxes: whole ids, or names. A name means the newest sandbox that has it.
    #[serde(default)]
    sandboxes: Vec<String>,
    /// The time in milliseconds that a kill may take until the survivors are reported; default 10000.
    patience_ms: Option<u64>,
}

/// The result of a collection.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Collection {
    /// Whether everything that matters could be read.
    complete: bool,
    /// The objects that could not be read.
    unread: Vec<String>,
    /// The leaks, each with its result.
    leaks: Vec<Collected>,
}

/// A leak, with its result.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Collected {
    /// The leak.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    leak: Leak,
    /// The result.
    outcome: CollectOutcome,
    /// Why the leak was kept, or could not be removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// What the removal found and did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    findings: Option<Findings>,
}

/// The result for a leak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum CollectOutcome {
    /// It was observed gone.
    Removed,
    /// It would be removed without `dry_run`.
    WouldRemove,
    /// It was kept on purpose.
    Kept,
    /// Something of it is left.
    Failed,
}

const USUAL_PATIENCE: Duration = Duration::from_secs(10);

/// Ends and removes leaks, and removes the records of ended sandboxes. Each removal is verified.
#[utoipa::path(
    post, path = "/gc", tag = "host", operation_id = "collectGarbage",
    request_body(content = Option<GcRequest>),
    responses(
        (status = 200, description = "each leak with its result", body = Collection),
        Problem,
    )
)]
async fn gc(
    State(app): State<AppState>,
    OptionalJson(request): OptionalJson<GcRequest>,
) -> Result<axum::Json<Collection>, Problem> {
    if let Some(kind) = request.kinds.iter().find(|kind| !Thing::KINDS.contains(&kind.as_str())) {
        return Err(Problem::field("kinds", format!("`{kind}` is not one of {}", Thing::KINDS.join(", "))));
    }
    let time = |field, ms: Option<u64>, usual| ms.map_or(Ok(usual), |ms| valid::valid_time(field, ms));
    let age = time("older_than_ms", request.older_than_ms, USUAL_AGE)?;
    let patience = time("patience_ms", request.patience_ms, USUAL_PATIENCE)?;
    let temporary = app.config.temporary.clone();
    let _turn = app.engine.checking().lock().await;
    let collection = app.engine.call(move |scope| {
        let root = scope.root();
        let survey = leaks::find_leaks(root, &[temporary]).map_err(|error| {
            Problem::new(Kind::Internal, format!("cannot search this host: {}", error_chain(&error)))
        })?;
        let Survey { mut leaks, kept, complete, mut unread, .. } = survey;
        leaks.extend(kept);
        if !scope.is_whole() {
            leaks.retain(|leak| match leak.name.as_deref().and_then(names::tenant_in) {
                Some(tenant) => scope.has_tenant(Some(tenant)),
                None => is_own_remainder(scope, &leak.id),
            });
        }
        if !scope.has_unowned() {
            // Paths of others are among them.
            unread.clear();
        }
        let is_named = !request.sandboxes.is_empty();
        let rules = GcRules { older_than: age, is_named, is_complete: complete };
        let collector = Collector { scope, request: &request, rules, patience };
        let mut leaks: Vec<Collected> =
            collector.choose(leaks).into_iter().map(|leak| collector.collect(leak)).collect();
        for Collected { leak, .. } in &mut leaks {
            leak.name = leak.name.as_deref().map(|held| scope.shown_name(held));
        }
        if !request.dry_run && scope.has_unowned() {
            // A note that stays hides no leak: what it names has ended.
            let _ = leaks::prune_spared(root);
        }
        Ok::<_, Problem>(Collection { complete, unread, leaks })
    });
    Ok(axum::Json(collection.await??))
}

struct Collector<'a> {
    scope: &'a Scope,
    request: &'a GcRequest,
    rules: GcRules,
    patience: Duration,
}

impl Collector<'_> {
    /// Returns the leaks that the request selects.
    fn choose(&self, mut leaks: Vec<Leak>) -> Vec<Leak> {
        let GcRequest { kinds, sandboxes, .. } = self.request;
        if self.rules.is_named {
            let named = |word: &String| {
                let mut held = self.scope.held_names(word);
                held.find_map(|name| named_sandbox(&leaks, &name).map(str::to_owned))
            };
            let by_id =
                |word: &String| named_sandbox(&leaks, word).filter(|id| id == word).map(str::to_owned);
            let named = |word: &String| by_id(word).or_else(|| named(word));
            let ids: Vec<String> = sandboxes.iter().filter_map(named).collect();
            leaks.retain(|leak| ids.contains(&leak.id));
        }
        leaks.retain(|leak| kinds.is_empty() || kinds.iter().any(|kind| kind == leak.thing.kind()));
        leaks
    }

    fn collect(&self, leak: Leak) -> Collected {
        if let Some(reason) = self.refusal(&leak) {
            return Collected { leak, outcome: CollectOutcome::Kept, reason: Some(reason), findings: None };
        }
        if self.request.dry_run {
            return Collected { leak, outcome: CollectOutcome::WouldRemove, reason: None, findings: None };
        }
        let (outcome, reason, findings) =
            match leaks::collect_leak(&leak, self.scope.root(), self.rules.is_named, self.patience) {
                Ok(findings) if findings.verified => (CollectOutcome::Removed, None, Some(findings)),
                Ok(findings) => {
                    let left: Vec<String> = findings.survivors.iter().map(ToString::to_string).collect();
                    (CollectOutcome::Failed, Some(left.join("; ")), Some(findings))
                }
                Err(error) => (CollectOutcome::Failed, Some(error_chain(&error)), None),
            };
        let word = if outcome == CollectOutcome::Removed { "removed" } else { "failed" };
        leaks::publish_removal(&leak, self.scope.root(), word, reason.clone());
        Collected { leak, outcome, reason, findings }
    }

    /// Why a leak is kept, in words.
    fn refusal(&self, leak: &Leak) -> Option<String> {
        let sentence = match self.rules.keep_reason(leak)? {
            KeepReason::Supervised => "its supervisor lives; kill the sandbox",
            KeepReason::OtherRoot => "it may belong to another state root; name the sandbox to end it",
            KeepReason::Unread => "parts of this host could not be read, so it may be alive",
            KeepReason::Young => "younger than `older_than_ms`",
        };
        Some(sentence.to_owned())
    }
}
