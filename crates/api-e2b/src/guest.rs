//! A sandbox as the data plane reaches it, and who may reach it.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use penfold_server::records::{find_sandbox, open_record};
use penfold_server::{Peer, refuse_web_pages};
use penfold_state::evidence::fingerprints::is_frozen;
use penfold_state::{Files, Id};

use crate::access;
use crate::address::{Address, GUEST_PORT};
use crate::api::{Api, ApiState};
use crate::control::life::go_on;
use crate::error::ApiError;
use crate::templates::{RESUMES, SECURE, TEMPLATE, User};
use crate::{ports, refuse, signed};

/// The header with the access token of a sandbox.
pub(crate) const ACCESS: &str = "x-access-token";
/// The path that needs no access token: it says nothing but that the sandbox runs.
const HEALTH: &str = "/health";

/// A sandbox that runs, as the data plane reaches it.
#[derive(Debug, Clone)]
pub(crate) struct Guest {
    /// The record.
    pub(crate) files: Files,
    /// The user as whom commands run.
    pub(crate) user: User,
    /// The access token, unless the sandbox needs none.
    pub(crate) token: Option<String>,
    /// Whether the request has the token, or needs none.
    pub(crate) is_admitted: bool,
}

/// The routes of the data plane: these ones, and those of commands and files.
pub(crate) fn routes(api: ApiState, others: Router<ApiState>) -> Router {
    Router::new()
        .route(HEALTH, get(async || StatusCode::NO_CONTENT))
        .merge(others)
        .fallback(async || ApiError::new(StatusCode::NOT_FOUND, "there is no such path"))
        .layer(middleware::from_fn_with_state(ApiState::clone(&api), admit))
        .with_state(api)
}

/// Finds the sandbox of a request, checks the access token, and passes the request on to the data plane or to a port.
async fn admit(State(api): State<ApiState>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let address = match address_of(&api, &parts).await {
        Ok(address) => address,
        Err(error) => return error.into_response(),
    };
    let token = parts.headers.get(ACCESS).and_then(|token| token.to_str().ok()).map(str::to_owned);
    let id = address.id.clone();
    let found = api.call(move |api| {
        resume(api, &id)?;
        find(api, &id, token.as_deref())
    });
    let guest = match found.await {
        Ok(Some(guest)) => guest,
        Ok(None) => return gone(&address),
        Err(error) => return error.into_response(),
    };
    // A web page knows no id; without a token, its visitor's server is not to be found out.
    let is_tcp = matches!(parts.extensions.get::<Peer>(), Some(Peer::Tcp(_)));
    if is_tcp && guest.token.is_none() && let Err(refusal) = refuse_web_pages(&parts) {
        return refuse(&refusal);
    }
    if address.port != GUEST_PORT {
        return ports::pass(&api, &guest, &address, parts, body).await;
    }
    let needs_no_token = parts.uri.path() == HEALTH && parts.method == Method::GET || parts.uri.path() == signed::FILES;
    if !guest.is_admitted && !needs_no_token {
        return ApiError::new(StatusCode::UNAUTHORIZED, "the access token of the sandbox is needed").into_response();
    }
    parts.extensions.insert(guest);
    next.run(Request::from_parts(parts, body)).await
}

/// Returns which sandbox and port a request names, or for which sandbox its address is signed.
async fn address_of(api: &ApiState, parts: &Parts) -> Result<Address, ApiError> {
    if let Some(address) = Address::of(&parts.headers) {
        return Ok(address);
    }
    if !signed::is_signed(parts) {
        return Err(ApiError::bad("the request names no sandbox"));
    }
    let (query, right) = signed::query_of(parts)?;
    api.call(move |api| signed::find_signed(api, &query, right)).await
}

/// Lets a paused sandbox go on, if it was created so.
fn resume(api: &Api, id: &str) -> Result<(), ApiError> {
    let Some(files) = record(api, id)? else { return Ok(()) };
    let Ok(intent) = files.intent() else { return Ok(()) };
    let is_paused = || intent.leaf.as_deref().is_some_and(is_frozen);
    let Some(timeout) = intent.labels.get(RESUMES).filter(|_| is_paused()).and_then(|text| text.parse().ok()) else {
        return Ok(());
    };
    match find_sandbox(api.app.engine.scope(), id) {
        Ok(known) => go_on(api, &known, timeout),
        Err(_) => Ok(()),
    }
}

/// Returns the record of a sandbox that lives, by its whole id.
fn record(api: &Api, id: &str) -> Result<Option<Files>, ApiError> {
    if !Id::is_short(id) {
        return Ok(None);
    }
    let record = open_record(api.app.engine.scope(), id).map_err(|error| ApiError::internal(&error))?;
    Ok(record.filter(|files| !files.has_ended() && files.lock().may_be_held()))
}

/// Finds a sandbox that runs by its whole id.
fn find(api: &Api, id: &str, token: Option<&str>) -> Result<Option<Guest>, ApiError> {
    let Some(files) = record(api, id)? else { return Ok(None) };
    let Ok(intent) = files.intent() else { return Ok(None) };
    if !intent.labels.contains_key(TEMPLATE) || intent.leaf.as_deref().is_some_and(is_frozen) {
        return Ok(None);
    }
    let is_secure = intent.labels.contains_key(SECURE);
    let expected = is_secure.then(|| api.secret().map(|secret| access::access_token(&secret, id))).transpose();
    let expected = expected.map_err(|error| ApiError::internal(&error))?;
    let is_admitted =
        expected.as_deref().is_none_or(|expected| token.is_some_and(|token| access::is_same(token, expected)));
    Ok(Some(Guest { files, user: User::of(&intent.labels), token: expected, is_admitted }))
}

/// What the proxy of the reference says of a sandbox that does not run.
fn gone(address: &Address) -> Response {
    let body = serde_json::json!({
        "sandboxId": address.id, "message": "The sandbox was not found", "code": StatusCode::BAD_GATEWAY.as_u16(),
    });
    (StatusCode::BAD_GATEWAY, axum::Json(body)).into_response()
}

/// The name of the Unix user that a request asks for, from `Authorization: Basic`.
///
/// # Errors
/// When it is another one than the sandbox has.
pub(crate) fn check_user(guest: &Guest, headers: &HeaderMap) -> Result<(), String> {
    use base64::Engine as _;
    let Some(given) = headers.get(axum::http::header::AUTHORIZATION) else { return Ok(()) };
    let name = given.to_str().ok().and_then(|text| text.strip_prefix("Basic ")).and_then(|text| {
        let decoded = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
        String::from_utf8(decoded).ok()?.split_once(':').map(|(name, _)| name.to_owned())
    });
    let name = name.ok_or("`Authorization` is not `Basic base64(user:)`")?;
    check_user_name(guest, &name)
}

/// Checks the name of a Unix user. The empty name is the user of the sandbox.
///
/// # Errors
/// When it is another one than the sandbox has.
pub(crate) fn check_user_name(guest: &Guest, name: &str) -> Result<(), String> {
    if name.is_empty() || name == guest.user.name {
        return Ok(());
    }
    let own = &guest.user.name;
    Err(format!("invalid username: '{name}'; everything in this sandbox runs as `{own}`, and there is no other user to become"))
}
