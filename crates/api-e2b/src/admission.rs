//! The way into the data plane: which sandbox a request is for, and whether its client may reach it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Extension, Router};
use penfold_server::{Peer, Tokens, refuse_web_pages};

use crate::access::HEADER;
use crate::address::{Address, GUEST_PORT};
use crate::api::ApiState;
use crate::error::{ApiError, refuse};
use crate::guest::{Guest, Place};
use crate::sandbox::{Credentials, find, is_ending, resume};
use crate::{ports, signed};

/// The path that needs no access token: it says nothing but that the sandbox runs.
const HEALTH: &str = "/health";

/// The routes of the data plane: these ones, and those of commands and files.
pub(crate) fn routes(api: ApiState, others: Router<ApiState>) -> Router {
    Router::new()
        .route(HEALTH, get(health))
        .merge(others)
        .fallback(async || ApiError::new(StatusCode::NOT_FOUND, "there is no such path"))
        .layer(middleware::from_fn_with_state(ApiState::clone(&api), admit))
        .with_state(api)
}

/// `GET /health`: whether the sandbox runs. The streams of its commands break off while it is being ended; their clients ask here then.
async fn health(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
) -> Result<Response, ApiError> {
    let Place::Sandbox(files) = guest.place else { return Ok(StatusCode::NO_CONTENT.into_response()) };
    let id = files.name().to_owned();
    let is_ending = api.call(move |_| Ok::<_, ApiError>(is_ending(&files))).await?;
    Ok(if is_ending { gone(&id) } else { StatusCode::NO_CONTENT.into_response() })
}

/// Finds the sandbox of a request, checks the access token, and passes the request on to the data plane or to a port.
async fn admit(State(api): State<ApiState>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let address = match address_of(&api, &parts).await {
        Ok(address) => address,
        Err(error) => return error.into_response(),
    };
    let credentials = Credentials {
        token: parts.headers.get(HEADER).and_then(|token| token.to_str().ok()).map(str::to_owned),
        tokens: parts.extensions.get::<Arc<Tokens>>().cloned().unwrap_or_default(),
    };
    let id = address.id.clone();
    let found = api.call(move |api| {
        resume(api, &id)?;
        find(api, &id, &credentials)
    });
    let guest = match found.await {
        Ok(Some(guest)) => guest,
        Ok(None) => return gone(&address.id),
        Err(error) => return error.into_response(),
    };
    // A web page knows no id; without a token, its visitor's server is not to be found out.
    let is_tcp = matches!(parts.extensions.get::<Peer>(), Some(Peer::Tcp(_)));
    if is_tcp
        && guest.token.is_none()
        && let Err(refusal) = refuse_web_pages(&parts)
    {
        return refuse(&refusal);
    }
    if address.port == 0 {
        return ApiError::bad("`E2b-Sandbox-Port` is no port").into_response();
    }
    if address.port != GUEST_PORT {
        return ports::pass(&api, &guest, &address, parts, body).await;
    }
    let needs_no_token =
        parts.uri.path() == HEALTH && parts.method == Method::GET || parts.uri.path() == signed::FILES;
    if !guest.is_admitted && !needs_no_token {
        return ApiError::new(StatusCode::UNAUTHORIZED, "the access token of the sandbox is needed")
            .into_response();
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

/// What the proxy of the reference says of a sandbox that does not run.
fn gone(id: &str) -> Response {
    let body = serde_json::json!({
        "sandboxId": id, "message": "The sandbox was not found", "code": StatusCode::BAD_GATEWAY.as_u16(),
    });
    (StatusCode::BAD_GATEWAY, axum::Json(body)).into_response()
}
