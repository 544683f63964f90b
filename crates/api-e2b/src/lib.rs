//! The E2B API, as three [`Dialect`]s of the server: the control plane at its paths, the data plane for every request that names a
//! sandbox, and the same data plane for the machine on which the server runs. Behind all are sandboxes of penfold, so an end is
//! answered once everything was observed gone.
//!
//! - `control` — the control plane: create, list, look, end, lease, pause.
//! - `address` — which sandbox and port a request names; `access` — access tokens of sandboxes, and signatures of file URLs.
//! - `admission` — the way into the data plane; `sandbox` — the sandbox of a request; `guest` — a sandbox, or this machine, as the data
//!   plane reaches it.
//! - `envd` — the way into the data plane of this machine; `settings` — what was set for it, `machine` — the sandbox of its commands,
//!   `user` — its users.
//! - `connect` — the Connect protocol: messages, frames, errors; `protobuf` — messages that are not JSON. `error` — errors as plain JSON.
//! - `ports` — passes requests on to the ports of a sandbox.
//! - `filesystem` — files. `files` — their content. `watched` — watched directories. `inside` — the files that the commands of a
//!   sandbox see.
//! - `signed` — signed addresses of files, which need no access token.
//! - `process` — commands: recorded execs of the sandbox.
//! - `templates` — what a new sandbox is made of.
//!
//! Differences from the reference are listed in docs/e2b.md. Invariants: a server that is killed loses nothing that a client was
//! told; nothing of a sandbox is kept in memory only.

mod access;
mod address;
mod admission;
mod api;
mod connect;
mod control;
mod envd;
mod error;
mod files;
mod filesystem;
#[cfg(fuzzing)]
pub mod fuzzing;
mod guest;
mod inside;
mod machine;
mod ports;
mod process;
mod protobuf;
mod sandbox;
mod settings;
mod signed;
mod templates;
mod user;
mod watched;

use axum::http::request::Parts;
use axum::http::{HeaderName, Method};
use axum::{Router, middleware};
use penfold_server::{AppState, Dialect, TokenPlace};

use self::address::{Address, GUEST_PORT};
use self::api::{Api, ApiState};
use self::error::refuse;

pub use self::templates::check_template;

/// The control plane.
pub const CONTROL: Dialect = Dialect {
    name: "e2b",
    owns: control::owns,
    claims: None,
    token_place: TokenPlace::Header(HeaderName::from_static("x-api-key")),
    reads: |method, _| method.is_safe(),
    ends: |method, path| *method == Method::DELETE && path.starts_with("/sandboxes/"),
    refusal: refuse,
    routes: |app| control::routes(Api::new(app)),
    is_served: true,
};

/// The data plane: the requests that name a sandbox.
pub const GUEST: Dialect = Dialect {
    name: "e2b-guest",
    owns: |_| false,
    claims: Some(names_sandbox),
    token_place: TokenPlace::Nowhere,
    reads: |method, _| method.is_safe(),
    ends: |_, path| path == process::SEND_SIGNAL,
    refusal: refuse,
    routes: guest_routes,
    is_served: true,
};

/// The data plane of this machine. Requests with its paths that name a sandbox are for that one, if [`GUEST`] comes before it.
pub const ENVD: Dialect = Dialect {
    name: "e2b-envd",
    owns: |_| true,
    claims: Some(envd::is_own),
    token_place: TokenPlace::Nowhere,
    reads: |method, _| method.is_safe(),
    ends: |_, path| path == process::SEND_SIGNAL,
    refusal: refuse,
    routes: |app| envd::routes(Api::new(app), data_routes()),
    is_served: true,
};

/// Tells whether a request is for a sandbox. Old SDKs also name the sandbox when they ask the control plane to connect to it, with the
/// port of the data plane, which has no such paths.
fn names_sandbox(parts: &Parts) -> bool {
    let is_for_control = |address: &Address| address.port == GUEST_PORT && control::owns(parts.uri.path());
    Address::of(&parts.headers).is_some_and(|address| !is_for_control(&address)) || signed::is_signed(parts)
}

fn guest_routes(app: AppState) -> Router {
    admission::routes(Api::new(app), data_routes())
}

fn data_routes() -> Router<ApiState> {
    let calls = process::routes().merge(filesystem::routes());
    calls.layer(middleware::from_fn(connect::answer_in_kind)).merge(files::routes())
}
