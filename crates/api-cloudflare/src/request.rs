//! The bodies of requests.

use std::future::poll_fn;
use std::pin::Pin;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use tokio::sync::OwnedSemaphorePermit;

use super::api::ApiState;
use super::error::{ApiError, Code};

/// The largest body of [`Large`]: a file of 100 MiB, and what is around it.
const LARGEST: usize = (100 << 20) + (64 << 10);

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

/// A body that is JSON, and may be larger than other bodies.
#[derive(Debug)]
pub(crate) struct Large<T> {
    pub(crate) request: T,
    /// Held as long as the content is in memory.
    pub(crate) place: Option<OwnedSemaphorePermit>,
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<ApiState> for Large<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &ApiState) -> Result<Large<T>, ApiError> {
        let (bytes, place) = large_bytes(request.into_body(), api).await?;
        if place.is_none() {
            return Ok(Large { request: parse(&bytes)?, place });
        }
        // It takes too long for a thread of the runtime.
        api.call(move |_| Ok(Large { request: parse(&bytes)?, place })).await
    }
}

/// Reads a body. One that is larger than other bodies needs a place.
async fn large_bytes(
    mut body: Body,
    api: &ApiState,
) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), ApiError> {
    let too_large = || Err(ApiError::new(Code::FileTooLarge, "the body of the request is too large"));
    let length = body.size_hint().lower();
    if length > u64::try_from(LARGEST).unwrap_or(u64::MAX) {
        return too_large();
    }
    let mut place = None;
    let mut bytes = Vec::new();
    let mut expected = usize::try_from(length).unwrap_or(LARGEST);
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|error| ApiError::new(Code::ValidationFailed, error.to_string()))?;
        let Ok(part) = frame.into_data() else { continue };
        expected = expected.max(bytes.len() + part.len());
        if expected > LARGEST {
            return too_large();
        }
        if expected > api.app.config.limits.body && place.is_none() {
            place = Some(api.app.engine.large_body().ok_or_else(|| {
                let message = "this server reads as many large bodies as it can have in memory";
                ApiError::overload(Code::InternalError, message)
            })?);
            bytes.reserve_exact(expected - bytes.len());
        }
        bytes.extend_from_slice(&part);
    }
    Ok((bytes, place))
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
