//! The native API of penfold, below `/v1`, as a [`Dialect`] of the server: one file for each resource.
//!
//! - Errors are problem documents; their `type` never changes (`problem`).
//! - The description in `OpenAPI` is generated from the code, and committed as `docs/openapi.json`.
//! - Non-goals: whatever another dialect needs too is in `penfold-server`; the bodies that clients read are in `penfold-api`.
//!
//! Invariants: fields and kinds of problems are only ever added; an answer about an end comes after that end was observed.

mod attach;
#[cfg(test)]
mod description;
mod documents;
mod ending;
mod events;
mod execs;
mod extract;
mod files;
mod host;
mod lease;
mod log_answer;
mod logs;
mod model;
mod output;
mod pause;
mod problem;
mod routes;
mod sandboxes;
mod sessions;
mod signal;
mod sse;
mod terminal;
mod valid;

use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json, Router};
use events::EventFeeds;
use log_answer::LogFeeds;
use penfold_server::{AppState, Dialect, Refusal, TokenPlace};
use problem::{Kind, PROBLEM_JSON, Problem};
use routes::{Routes, into_router};
use serde_json::json;

/// The native API, as the server serves it.
pub const DIALECT: Dialect = Dialect {
    name: "native",
    owns: is_own,
    claims: None,
    token_place: TokenPlace::Bearer,
    reads: only_reads,
    ends: does_end,
    refusal: refuse,
    routes: router,
    is_served: true,
};

/// Whether a request changes nothing. Over a socket comes input.
fn only_reads(method: &Method, path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let is_socket = matches!(
        parts.as_slice(),
        ["", "v1", "sandboxes", _, "attach"] | ["", "v1", "sandboxes", _, "execs", _, "attach"]
    );
    method.is_safe() && !is_socket
}

/// Whether a request ends a sandbox, an exec or a session, or what a command does there.
fn does_end(method: &Method, path: &str) -> bool {
    let parts: Vec<&str> = path.strip_prefix("/v1/sandboxes/").unwrap_or_default().split('/').collect();
    match parts.as_slice() {
        [id] | [id, "execs" | "sessions", _] => *method == Method::DELETE && !id.is_empty(),
        [_, "stop" | "kill"]
        | [_, "execs", _, "stop" | "kill" | "signal"]
        | [_, "sessions", _, "interrupt"] => *method == Method::POST,
        _ => false,
    }
}

/// Whether a path belongs to the native API. `/metrics` is the server's own; its callers are those of this API.
fn is_own(path: &str) -> bool {
    ["/v1", "/metrics", "/docs", "/openapi.json"]
        .iter()
        .any(|own| path.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// Answers a request that reaches no route.
fn refuse(refusal: &Refusal) -> Response {
    let Refusal { status, kind, sentence } = *refusal;
    let body = json!({
        "type": format!("urn:penfold:problem:{kind}"),
        "title": "the request is refused before its route",
        "status": status.as_u16(),
        "detail": sentence,
    });
    let mut response = (status, Json(body)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// The routes of the native API.
fn router(app: AppState) -> Router {
    let routes = into_router(resources())
        .fallback(async || Problem::new(Kind::NoRoute, "`/v1/openapi.json` lists the routes"))
        .method_not_allowed_fallback(async || {
            Problem::new(Kind::MethodNotAllowed, "the header `Allow` lists the methods")
        });
    let routes = routes.layer(Extension(LogFeeds::default())).layer(Extension(EventFeeds::default()));
    Router::new().nest("/v1", routes).merge(documents::routes()).with_state(app)
}

fn resources() -> Routes {
    Routes::new()
        .merge(sandboxes::routes())
        .merge(ending::routes())
        .merge(lease::routes())
        .merge(pause::routes())
        .merge(logs::routes())
        .merge(terminal::routes())
        .merge(files::routes())
        .merge(events::routes())
        .merge(host::routes())
        .merge(execs::routes())
        .merge(sessions::routes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 15.4.3
    #[test]
    fn every_route_that_ends_something_has_reserved_room_and_no_other() {
        let description: serde_json::Value = serde_json::from_str(documents::OPENAPI).unwrap();
        let mut ends = Vec::new();
        for (path, methods) in description["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let name = operation["operationId"].as_str().unwrap().to_owned();
                let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
                let path = path.replace("{id}", "web").replace("{number}", "3").replace("{name}", "main");
                let is_end = ["stop", "kill", "delete", "signal", "interrupt"]
                    .iter()
                    .any(|word| name.starts_with(word));
                assert_eq!(does_end(&method, &path), is_end, "{name}");
                ends.extend(is_end.then_some(name));
            }
        }
        assert!(ends.len() >= 9, "{ends:?}");
        assert!(!does_end(&Method::DELETE, "/v1/sandboxes/"));
    }

    #[test]
    fn a_refusal_is_a_problem_document_with_all_that_the_description_requires() {
        let answer = refuse(&Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", "why"));
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/problem+json");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let body = runtime.block_on(axum::body::to_bytes(answer.into_body(), usize::MAX)).unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let description: serde_json::Value = serde_json::from_str(documents::OPENAPI).unwrap();
        let required = description["components"]["schemas"]["Problem"]["required"].as_array().unwrap();
        assert!(required.len() >= 4, "{required:?}");
        for field in required {
            assert!(body.get(field.as_str().unwrap()).is_some(), "{field} is missing in {body}");
        }
        assert_eq!((&body["status"], &body["detail"]), (&json!(401), &json!("why")));
    }
}
