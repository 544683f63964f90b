//! The Cloudflare Sandbox API, at `/`, as a [`Dialect`] of the server: the wire format of the reference, with penfold's guarantees behind it.
//!
//! - `request`, `ids`, `answer`, `error`, `sse`, `event_reader` — the wire: bodies, ids, answers, errors, events.
//! - `files`, `info`, `runtime` — routes that need no sandbox.
//! - `sessions` — a session is a sandbox with a persistent shell; `execute` — commands in that shell.
//! - `processes` — background commands: recorded execs beside the shell; `log_events` — their output as objects.
//! - `ports` — waits for a port; `git` — clones a repository.
//! - `interpreter` — runs code in contexts, which keep its state.
//! - `pty` — the terminal of a session; `terminals` — those of clients from 0.13 on.
//! - `end_tree` — the end of a process, a context or a terminal.
//! - `ws` — all routes over one WebSocket; `rpc` — the same as calls of methods.
//! - `watch` — reports changes below a directory; `watched` — the directory trees of inotify(7).
//! - `json_body`, `output` — JSON that is written in parts.
//! - `api` — what the server remembers. It can be killed: all of it is found again on disk.
//! - `forget` — forgets what is gone from the disk.
//!
//! Differences from the reference are listed in docs/cloudflare.md. Non-goals: whatever another dialect needs too is in
//! `penfold-server`.
//!
//! Invariants: a server that is killed loses nothing that a client was told; of two servers with one state root, only one
//! gives an id to a process.

mod answer;
mod api;
mod backup;
mod claims;
mod end_tree;
mod error;
mod event_reader;
mod execute;
mod files;
mod forget;
mod git;
mod ids;
mod info;
mod interpreter;
mod json_body;
mod leases;
mod log_events;
mod lost_shells;
mod output;
mod ports;
mod processes;
mod pty;
mod request;
mod rpc;
mod runtime;
mod sessions;
mod sse;
mod terminals;
mod time;
mod tool;
mod watch;
mod watched;
mod ws;

use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::{Json, Router};
use penfold_server::{AppState, Dialect, Refusal, TokenPlace, or_no_descriptors};
use serde_json::json;

use self::api::{Api, ApiState};
use self::error::{ApiError, Code};

/// The Cloudflare Sandbox API, as the server serves it. It owns every path, so it comes last in a list.
pub const DIALECT: Dialect = Dialect {
    name: "cloudflare",
    owns: |_| true,
    claims: None,
    token_place: TokenPlace::Nowhere,
    reads: only_reads,
    ends: does_end,
    refusal: refuse,
    routes: router,
    is_served: true,
};

/// Tells whether a request changes nothing. Over a socket comes anything.
fn only_reads(method: &Method, path: &str) -> bool {
    files::only_reads(method, path)
        && ![pty::PATH, terminals::PATH].contains(&path)
        && !path.starts_with(rpc::PATH)
        && !ws::PATHS.contains(&path)
}

/// Tells whether a request ends a session or processes.
fn does_end(method: &Method, path: &str) -> bool {
    match path {
        "/api/session/delete" => *method == Method::POST,
        _ => {
            *method == Method::DELETE
                && ["/api/process/", "/api/contexts/"].iter().any(|of| path.starts_with(of))
        }
    }
}

/// Answers a request that reaches no route.
fn refuse(refusal: &Refusal) -> Response {
    let Refusal { status, kind, sentence } = *refusal;
    let body = json!({ "code": kind.to_uppercase(), "message": sentence, "httpStatus": status.as_u16() });
    (status, Json(body)).into_response()
}

/// The routes of the Cloudflare Sandbox API.
fn router(app: AppState) -> Router {
    let limit = app.config.limits.body;
    let api = Api::new(app);
    let routes = Router::new()
        .merge(info::routes())
        .merge(files::routes())
        .merge(sessions::routes())
        .merge(execute::routes())
        .merge(processes::routes())
        .merge(ports::routes())
        .merge(git::routes())
        .merge(backup::routes())
        .merge(interpreter::routes())
        .merge(watch::routes());
    // What comes over a socket goes to the same routes, with the same limits.
    let over_sockets = behind_socket(finish(routes.clone(), &api), limit);
    let for_calls = routes
        .clone()
        .merge(files::stream_routes())
        .merge(runtime::routes())
        .merge(ports::call_routes())
        .merge(backup::call_routes())
        .merge(processes::word_routes())
        .merge(terminals::routes());
    let for_calls = behind_socket(finish(for_calls, &api), limit);
    let sockets = pty::routes().merge(terminals::socket_routes()).merge(ws::routes(&over_sockets));
    finish(routes.merge(sockets).merge(rpc::routes(for_calls)), &api)
}

fn finish(routes: Router<ApiState>, api: &ApiState) -> Router {
    routes
        .method_not_allowed_fallback(unmatched)
        .fallback(unmatched)
        .layer(middleware::from_fn(around))
        .with_state(ApiState::clone(api))
}

/// Gives routes what the server does for requests over HTTP only.
fn behind_socket(routes: Router, limit: usize) -> Router {
    let check = async |response| {
        or_no_descriptors(response)
            .map_err(|refusal| ApiError::overload(Code::InternalError, refusal.sentence))
    };
    routes.layer(middleware::map_response(check)).layer(DefaultBodyLimit::max(limit))
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
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    let mut set = |name, value| headers.insert(name, HeaderValue::from_static(value));
    set(header::ACCESS_CONTROL_ALLOW_ORIGIN, "*");
    set(header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, PUT, DELETE, OPTIONS");
    let allowed = "Content-Type, Authorization, X-Session-Id, X-Sandbox-Id, X-Trace-Id";
    set(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    response
}
