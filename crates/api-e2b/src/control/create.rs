//! New sandboxes.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::{HeaderMap, StatusCode};
use penfold_control::ResolveError;
use penfold_request::{JailNetwork, RefusalKind};
use penfold_server::files::Jail;
use penfold_server::ids::{Created, KeyError, create_once};
use penfold_server::records::{find_sandbox, open_record};
use penfold_server::{EngineError, NewSandbox, is_settable};
use penfold_state::{error_chain, names};
use serde::Deserialize;
use serde_json::Value;

use super::life;
use super::model::{Handle, handle};
use super::time::{NO_COLD_START, USUAL_TIMEOUT, lease_ms};
use crate::api::ApiState;
use crate::error::ApiError;
use crate::templates::{self, RESUMES, SECURE};

/// Labels of this API, and those of the server, are not for metadata.
const RESERVED: [&str; 2] = ["e2b.", "penfold."];

/// A sandbox that a client wants.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Wanted {
    #[serde(rename = "templateID")]
    template: String,
    timeout: Option<u64>,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
    #[serde(default)]
    env_vars: Option<BTreeMap<String, String>>,
    secure: Option<bool>,
    auto_pause: Option<bool>,
    auto_pause_memory: Option<bool>,
    auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    network: Option<Value>,
    iam: Option<Value>,
    volume_mounts: Option<Vec<Value>>,
}

/// Whether a request to a port lets a paused sandbox go on.
#[derive(Debug, Default, Deserialize)]
struct AutoResume {
    #[serde(default)]
    enabled: bool,
}

/// `POST /sandboxes`: an access token is needed if the client asks for one.
pub(super) async fn create_first(
    State(api): State<ApiState>,
    headers: HeaderMap,
    body: Result<Json<Wanted>, JsonRejection>,
) -> Result<(StatusCode, Json<Handle>), ApiError> {
    let Json(wanted) = body.map_err(|rejection| ApiError::bad(rejection.body_text()))?;
    let is_secure = wanted.secure.unwrap_or(false);
    create(api, headers, wanted, is_secure).await
}

/// `POST /v2/sandboxes`: an access token is always needed.
pub(super) async fn create_second(
    State(api): State<ApiState>,
    headers: HeaderMap,
    body: Result<Json<Wanted>, JsonRejection>,
) -> Result<(StatusCode, Json<Handle>), ApiError> {
    let Json(wanted) = body.map_err(|rejection| ApiError::bad(rejection.body_text()))?;
    create(api, headers, wanted, true).await
}

async fn create(
    api: ApiState,
    headers: HeaderMap,
    wanted: Wanted,
    is_secure: bool,
) -> Result<(StatusCode, Json<Handle>), ApiError> {
    let template = wanted.template.clone();
    let new = describe(&api, wanted, is_secure)?;
    let key = headers.get("idempotency-key").map(|key| key.to_str().map(str::to_owned));
    let key = key.transpose().map_err(|_| ApiError::bad("`Idempotency-Key` is no text"))?;
    if key.as_ref().is_some_and(|key| !names::is_label_value(key)) {
        return Err(ApiError::bad("`Idempotency-Key` has at most 256 bytes and no control characters"));
    }
    // A client that goes away does not undo it: its repeated request finds the sandbox.
    let making = tokio::spawn(async move {
        let made = match key {
            None => api.app.engine.create(new).await.map(Created::New).map_err(KeyError::Engine),
            Some(key) => create_once(&api.app.engine, key, new).await,
        };
        let id = match made.map_err(refused)? {
            Created::New(id) => await_jail(&api, id).await?,
            Created::Earlier(earlier) => earlier.1.id,
        };
        Ok::<_, ApiError>((api, id))
    });
    let (api, id) = making.await.map_err(|error| ApiError::internal(&error))??;
    let handle = api.call(move |api| handle(api, &id, &template, is_secure)).await?;
    Ok((StatusCode::CREATED, Json(handle)))
}

/// Waits until the commands of a new sandbox can run. One in which none can is ended.
async fn await_jail(api: &ApiState, id: String) -> Result<String, ApiError> {
    let looking = api.call(move |api| {
        let files = open_record(api.app.engine.scope(), &id).map_err(|error| ApiError::internal(&error))?;
        Ok::<_, ApiError>(match files.as_ref().map(Jail::open) {
            Some(Ok(_)) => Ok(id),
            Some(Err(error)) => Err((id, error_chain(&error))),
            None => Err((id, "its command has ended".to_owned())),
        })
    });
    let (id, why) = match looking.await? {
        Ok(id) => return Ok(id),
        Err(failed) => failed,
    };
    let finding = api.call(move |api| match find_sandbox(api.app.engine.scope(), &id) {
        Ok(known) => Ok(Some(known)),
        Err(ResolveError::NotFound { .. }) => Ok(None),
        Err(error) => Err(ApiError::from(EngineError::Resolve(error))),
    });
    if let Some(known) = finding.await? {
        life::end_whole(api, known).await?;
    }
    let message =
        format!("the sandbox did not begin to run: {why}; a template's command runs until the sandbox ends");
    Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message))
}

fn refused(error: KeyError) -> ApiError {
    match &error {
        KeyError::Engine(EngineError::Start(start)) if start.kind() == Some(RefusalKind::TooLarge) => {
            ApiError::bad(start.to_string())
        }
        KeyError::Reused { .. } => ApiError::new(StatusCode::CONFLICT, error.to_string()),
        KeyError::Engine(_) => match error {
            KeyError::Engine(error) => error.into(),
            KeyError::Reused { .. } => ApiError::internal(&error),
        },
    }
}

/// Makes the request for penfold.
fn describe(api: &ApiState, wanted: Wanted, is_secure: bool) -> Result<NewSandbox, ApiError> {
    let is_given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !is_empty(value));
    if wanted.volume_mounts.as_ref().is_some_and(|mounts| !mounts.is_empty()) {
        return Err(ApiError::unsupported(
            "there are no volumes; a template can have a directory as `rootfs`",
        ));
    }
    if is_given(&wanted.iam) {
        return Err(ApiError::unsupported("sandboxes have no identity for other services"));
    }
    if is_given(&wanted.network) {
        return Err(ApiError::unsupported(
            "there are no network rules: the network is that of the template, or none",
        ));
    }
    let pauses = wanted.auto_pause == Some(true);
    if pauses && wanted.auto_pause_memory == Some(false) {
        return Err(ApiError::unsupported(NO_COLD_START));
    }
    let mut spec = templates::spec_of(&api.app, &wanted.template)
        .map_err(|known| ApiError::no_template(&wanted.template, &known))?;
    for (key, value) in wanted.metadata.unwrap_or_default() {
        if RESERVED.iter().any(|reserved| key.starts_with(reserved)) {
            return Err(ApiError::bad(format!(
                "metadata key '{key}' begins with `e2b.` or `penfold.`, which are the server's"
            )));
        }
        if !names::is_label_key(&key) || !names::is_label_value(&value) {
            let rule = "a key has 1 to 64 of the characters a-z A-Z 0-9 . _ - / and begins with a letter or digit; a value has at most 256 bytes and no control characters";
            return Err(ApiError::bad(format!("metadata '{key}' cannot be a label: {rule}")));
        }
        spec.labels.insert(key, value);
    }
    for (key, value) in wanted.env_vars.unwrap_or_default() {
        if !is_settable(&key) || value.contains('\0') {
            return Err(ApiError::bad(format!("'{key}' cannot be a variable")));
        }
        spec.env.insert(key, value);
    }
    if is_secure {
        spec.labels.insert(SECURE.to_owned(), "1".to_owned());
    }
    if wanted.allow_internet_access == Some(false)
        && let Some(jail) = &mut spec.jail
    {
        jail.network = Some(JailNetwork::None);
    }
    let timeout = wanted.timeout.unwrap_or(USUAL_TIMEOUT);
    // A limit of 0 would end it before its client knows it.
    spec.lease_ms = Some(lease_ms(timeout.max(1)));
    // The time limit is an end as `DELETE` is, and no time is given to the commands.
    spec.grace_ms.get_or_insert(0);
    spec.lease_pauses = pauses;
    if wanted.auto_resume.is_some_and(|resume| resume.enabled) {
        spec.labels.insert(RESUMES.to_owned(), timeout.to_string());
    }
    // Its record goes with it: what has ended does not exist for the API.
    spec.remove_at_end = true;
    Ok(NewSandbox { spec })
}

/// Tells whether an object asks for nothing: each of its fields is empty.
fn is_empty(value: &Value) -> bool {
    let has_nothing = |value: &Value| match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    value.as_object().map_or_else(|| has_nothing(value), |fields| fields.values().all(has_nothing))
}
