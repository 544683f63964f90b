//! `POST /init`: sets the access token, and the variables, user and directory of those who name none. `GET /envs`.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use penfold_server::is_settable;
use serde::Deserialize;
use serde_json::Value;

use crate::access;
use crate::api::{Api, ApiState};
use crate::error::ApiError;
use crate::guest::{Guest, Place};
use crate::settings::Settings;

/// The longest token.
const LONGEST: usize = 4096;

/// What a client sets. What it leaves out stays as it is.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Wanted {
    access_token: Option<String>,
    env_vars: Option<BTreeMap<String, String>>,
    default_user: Option<String>,
    default_workdir: Option<String>,
    volume_mounts: Option<Vec<Value>>,
    ca_bundle: Option<String>,
}

/// `POST /init`. The token of an earlier one is needed, in the header or in the body.
pub(super) async fn init(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    body: Bytes,
) -> Result<StatusCode, ApiError> {
    let wanted = if body.is_empty() { Ok(Wanted::default()) } else { serde_json::from_slice(&body) };
    let wanted = wanted.map_err(|error| ApiError::bad(format!("the body is not as expected: {error}")));
    api.call(move |api| set(api, &guest, wanted)).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn set(api: &Api, guest: &Guest, wanted: Result<Wanted, ApiError>) -> Result<(), ApiError> {
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let root = api.app.engine.scope().root();
    let _turn = api.setting.lock();
    // Another request may have set a token since this one was admitted.
    let mut settings = Settings::read(root).map_err(|error| ApiError::internal(&error))?;
    let is_known = guest.is_admitted && guest.token == settings.access_token;
    let token = wanted.as_ref().ok().and_then(|wanted| wanted.access_token.as_deref());
    let is_same = |now: &str| token.is_some_and(|token| access::is_same(token, now));
    if !is_known && !settings.access_token.as_deref().is_some_and(is_same) {
        let message = "the present access token is needed, as `X-Access-Token`";
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, message));
    }
    let wanted = wanted?;
    check(&wanted)?;
    settings.access_token = given(wanted.access_token).or(settings.access_token);
    settings.env_vars.extend(wanted.env_vars.unwrap_or_default());
    settings.default_user = given(wanted.default_user).or(settings.default_user);
    settings.default_workdir = given(wanted.default_workdir).or(settings.default_workdir);
    settings.keep(root).map_err(|error| ApiError::internal(&error))
}

fn check(wanted: &Wanted) -> Result<(), ApiError> {
    let is_sendable =
        |token: &str| token.len() <= LONGEST && token.bytes().all(|byte| byte.is_ascii_graphic());
    if !wanted.access_token.as_deref().is_none_or(is_sendable) {
        let message =
            format!("`accessToken` has at most {LONGEST} printable characters of ASCII, and no space");
        return Err(ApiError::bad(message));
    }
    let bad = |(key, value): &(&String, &String)| !is_settable(key) || value.contains('\0');
    if let Some((key, _)) = wanted.env_vars.as_ref().and_then(|variables| variables.iter().find(bad)) {
        return Err(ApiError::bad(format!("'{key}' cannot be a variable")));
    }
    if wanted.volume_mounts.as_ref().is_some_and(|mounts| !mounts.is_empty()) {
        return Err(ApiError::unsupported("volumes are not mounted: mount them before the server starts"));
    }
    if wanted.ca_bundle.as_ref().is_some_and(|bundle| !bundle.is_empty()) {
        return Err(ApiError::unsupported("certificates are not installed: add them to the machine"));
    }
    Ok(())
}

/// `GET /envs`: the variables of all commands.
pub(super) async fn variables(Extension(guest): Extension<Guest>) -> Json<BTreeMap<String, String>> {
    Json(match guest.place {
        Place::Machine { settings, .. } => settings.env_vars.clone(),
        Place::Sandbox(_) => BTreeMap::new(),
    })
}
