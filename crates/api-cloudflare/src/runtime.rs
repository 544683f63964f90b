//! The runtime that a client from 0.13 on talks to. Only calls over `/rpc` reach these routes.
//!
//! A client remembers the incarnation with what it has started, and gives all of that up for lost once the incarnation is another one.

use axum::Router;
use axum::extract::State;
use axum::routing::{get, post};
use penfold_server::ids::hashed_name;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{RouteResult, success_answer};
use crate::api::{Api, ApiState};
use crate::error::{ApiError, Code};
use crate::request::Parsed;

/// Tells which runtime this is.
pub(crate) const METADATA: &str = "/rpc/runtime";
/// Tells the same, and fails if the client expects another one.
pub(crate) const ACTIVATE: &str = "/rpc/runtime/activate";
/// The version of the methods.
const PROTOCOL: u32 = 1;

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new().route("/rpc/runtime", get(metadata)).route("/rpc/runtime/activate", post(activate))
}

#[derive(Debug, Deserialize)]
struct Activation {
    #[serde(rename = "runtimeIncarnationID")]
    incarnation: String,
}

async fn metadata(State(api): State<ApiState>) -> RouteResult {
    api.call(|api| Ok(success_answer(describe(&incarnation(api)?)))).await
}

async fn activate(State(api): State<ApiState>, Parsed(wanted): Parsed<Activation>) -> RouteResult {
    api.call(move |api| Ok(success_answer(describe(&check_incarnation(api, &wanted.incarnation)?)))).await
}

/// Checks that a client expects this runtime, and returns the incarnation.
///
/// # Errors
/// When it expects another one.
pub(crate) fn check_incarnation(api: &Api, expected: &str) -> Result<String, ApiError> {
    let incarnation = incarnation(api)?;
    if expected != incarnation {
        let message = "the runtime incarnation does not match: the host or the state root is another one";
        return Err(ApiError::new(Code::ControlProtocolIncompatible, message)
            .with("expectedRuntimeIncarnationID", expected)
            .with("runtimeIncarnationID", incarnation));
    }
    Ok(incarnation)
}

fn describe(incarnation: &str) -> Value {
    json!({
        "runtimeIncarnationID": incarnation,
        "sandboxVersion": env!("CARGO_PKG_VERSION"),
        "controlProtocolVersion": PROTOCOL,
    })
}

/// Returns the incarnation: the same for every server of a state root until the host boots, since no sandbox outlives that.
fn incarnation(api: &Api) -> Result<String, ApiError> {
    let boot = penfold_process::boot_id().map_err(|error| ApiError::internal(&error))?;
    Ok(hashed_name("runtime", &format!("{boot}\n{}", api.app.engine.scope().root().display())))
}
