//! `process.Process`: commands. Each is a recorded exec of the sandbox, so it outlives its clients and the server.
//!
//! - `messages` — what clients and the server say.
//! - `start` — a new command; `stream` — its events; `select` — the command that a client means.
//! - `input` — what is typed; `act` — lists, signals, sizes.

mod act;
mod input;
mod messages;
mod select;
mod start;
mod stream;

use axum::Router;
use axum::routing::post;

use crate::api::ApiState;

/// The path of the call that sends a signal.
pub(crate) const SEND_SIGNAL: &str = "/process.Process/SendSignal";

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/process.Process/List", post(act::list))
        .route("/process.Process/Start", post(start::start))
        .route("/process.Process/Connect", post(start::connect))
        .route("/process.Process/Update", post(act::update))
        .route("/process.Process/StreamInput", post(input::stream))
        .route("/process.Process/SendInput", post(input::send))
        .route("/process.Process/CloseStdin", post(input::close))
        .route(SEND_SIGNAL, post(act::signal))
}
