//! Errors as the control plane and the file routes send them: `{"code":404,"message":"…"}`.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use penfold_control::ResolveError;
use penfold_server::{EngineError, Refusal};
use penfold_state::error_chain;
use serde_json::json;

/// An error for the client.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into() }
    }

    /// The request is not as the API has it.
    pub(crate) fn bad(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    /// There is no such sandbox.
    pub(crate) fn no_sandbox(id: &str) -> ApiError {
        ApiError::new(
            StatusCode::NOT_FOUND,
            format!("sandbox \"{id}\" doesn't exist or you don't have access to it"),
        )
    }

    /// There is no such template.
    pub(crate) fn no_template(name: &str, known: &[String]) -> ApiError {
        let known = known.join(", ");
        let message = format!("template '{name}' not found; the templates of this server are: {known}");
        ApiError::new(StatusCode::NOT_FOUND, message)
    }

    /// What was asked for is not possible here.
    pub(crate) fn unsupported(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_IMPLEMENTED, message)
    }

    /// The fault is the server's.
    pub(crate) fn internal(error: &dyn std::error::Error) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error_chain(error))
    }

    /// The server has as much to do as it can have.
    pub(crate) fn too_many(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
    }
}

/// Answers a request that reaches no route.
pub(crate) fn refuse(refusal: &Refusal) -> Response {
    ApiError::new(refusal.status, refusal.sentence).into_response()
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> ApiError {
        match &error {
            EngineError::Resolve(ResolveError::NotFound { word, .. }) => ApiError::no_sandbox(word),
            EngineError::TooMany { .. } | EngineError::Busy => ApiError::too_many(error.to_string()),
            EngineError::Start(start) => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error_chain(start)),
            _ => ApiError::internal(&error),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = json!({ "code": self.status.as_u16(), "message": self.message });
        (self.status, Json(body)).into_response()
    }
}
