//! The Cloudflare Sandbox API, at `/`: the wire format of the reference, with penfold's guarantees behind it.
//!
//! - `request`, `ids`, `answer`, `error`, `sse` — the wire: bodies, ids, answers, errors, events.
//! - `files`, `info` — routes that need no sandbox.
//! - `sessions` — a session is a sandbox with a persistent shell; `execute` — commands in that shell.
//! - `processes` — background commands: recorded execs beside the shell.
//! - `places`, `followers`, `locks` — what the server remembers. It can be killed: all of it is found again on disk.
//!
//! Differences from the reference are listed in docs/cloudflare.md.

mod answer;
mod api;
mod claims;
mod error;
mod execute;
mod files;
mod followers;
mod ids;
mod info;
mod locks;
mod output;
mod places;
mod processes;
mod remaining;
mod request;
mod sessions;
mod sse;
mod time;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};

use crate::app::AppState;
use crate::caller::Caller;

use self::api::Api;
use self::error::ApiError;

/// The routes of the Cloudflare Sandbox API.
pub fn router(app: AppState) -> Router {
    Router::new()
        .merge(info::routes())
        .merge(files::routes())
        .merge(sessions::routes())
        .merge(execute::routes())
        .merge(processes::routes())
        .method_not_allowed_fallback(unmatched)
        .fallback(unmatched)
        .layer(middleware::from_fn(around))
        .with_state(Api::new(app))
}

async fn unmatched() -> ApiError {
    ApiError::unmatched()
}

/// Refuses methods that no route has, and adds the headers of every answer.
async fn around(request: Request, next: Next) -> Response {
    const METHODS: [Method; 5] = [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS];
    if !METHODS.contains(request.method()) {
        return (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error").into_response();
    }
    let token = request.extensions().get::<Caller>().and_then(|caller| caller.token);
    let mut response = sessions::TOKEN.scope(token, next.run(request)).await;
    let headers = response.headers_mut();
    let mut set = |name, value| headers.insert(name, HeaderValue::from_static(value));
    set(header::ACCESS_CONTROL_ALLOW_ORIGIN, "*");
    set(header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, PUT, DELETE, OPTIONS");
    let allowed = "Content-Type, Authorization, X-Session-Id, X-Sandbox-Id, X-Trace-Id";
    set(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    response
}
