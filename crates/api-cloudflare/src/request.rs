//! The bodies of requests.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::error::{ApiError, Code};

/// A body that is JSON, whatever its type is called.
#[derive(Debug)]
pub(crate) struct Parsed<T>(pub(crate) T);

impl<S, T> FromRequest<S> for Parsed<T>
where
    S: Send + Sync,
    T: DeserializeOwned,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Parsed<T>, ApiError> {
        let bytes = bytes(request, state).await?;
        parse(&bytes).map(Parsed)
    }
}

/// A body that may be missing or no JSON: then it is as if each field were missing.
#[derive(Debug)]
pub(crate) struct OptionallyParsed<T>(pub(crate) T);

impl<S, T> FromRequest<S> for OptionallyParsed<T>
where
    S: Send + Sync,
    T: DeserializeOwned + Default,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<OptionallyParsed<T>, ApiError> {
        let bytes = bytes(request, state).await?;
        match serde_json::from_slice::<T>(&bytes) {
            Err(error) if error.classify() != Category::Data => Ok(OptionallyParsed(T::default())),
            _ => parse(&bytes).map(OptionallyParsed),
        }
    }
}

async fn bytes<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, ApiError> {
    Bytes::from_request(request, state).await.map_err(|rejection: BytesRejection| {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            ApiError::new(Code::FileTooLarge, "the body of the request is too large")
        } else {
            // Its end did not come, or cannot be told: the request is malformed, whatever it holds.
            ApiError::new(Code::ValidationFailed, rejection.body_text())
        }
    })
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        Category::Data => ApiError::new(Code::ValidationFailed, error.to_string()),
        _ => unparsed(&error.to_string()),
    })
}

fn unparsed(why: &str) -> ApiError {
    ApiError::new(Code::InternalError, format!("Failed to parse request body: {why}"))
}
