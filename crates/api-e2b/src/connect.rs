//! The Connect protocol with JSON: a message is a body, or a frame of a stream. A frame is one byte of flags, the length in four bytes
//! (big endian), and the message.

use std::io;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt as _;
use penfold_server::EngineError;
use penfold_state::error_chain;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The media type of a stream.
const STREAM: &str = "application/connect+json";
/// The flag of the last frame of a stream.
const LAST: u8 = 2;
/// The largest message of a stream.
const LARGEST: usize = 4 << 20;

/// What kind of error it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Unimplemented,
    Internal,
    Unavailable,
    Unauthenticated,
}

impl Code {
    /// Its word, and the status of an answer that has it.
    fn parts(self) -> (&'static str, StatusCode) {
        match self {
            Code::InvalidArgument => ("invalid_argument", StatusCode::BAD_REQUEST),
            Code::DeadlineExceeded => ("deadline_exceeded", StatusCode::GATEWAY_TIMEOUT),
            Code::NotFound => ("not_found", StatusCode::NOT_FOUND),
            Code::AlreadyExists => ("already_exists", StatusCode::CONFLICT),
            Code::PermissionDenied => ("permission_denied", StatusCode::FORBIDDEN),
            Code::ResourceExhausted => ("resource_exhausted", StatusCode::TOO_MANY_REQUESTS),
            Code::FailedPrecondition => ("failed_precondition", StatusCode::BAD_REQUEST),
            Code::Unimplemented => ("unimplemented", StatusCode::NOT_IMPLEMENTED),
            Code::Internal => ("internal", StatusCode::INTERNAL_SERVER_ERROR),
            Code::Unavailable => ("unavailable", StatusCode::SERVICE_UNAVAILABLE),
            Code::Unauthenticated => ("unauthenticated", StatusCode::UNAUTHORIZED),
        }
    }
}

/// An error of a call.
#[derive(Debug, Clone)]
pub(crate) struct RpcError {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl RpcError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> RpcError {
        RpcError { code, message: message.into() }
    }

    /// The request is not as the API has it.
    pub(crate) fn invalid(message: impl Into<String>) -> RpcError {
        RpcError::new(Code::InvalidArgument, message)
    }

    /// The fault is the server's.
    pub(crate) fn internal(error: &dyn std::error::Error) -> RpcError {
        RpcError::new(Code::Internal, error_chain(error))
    }

    fn json(&self) -> serde_json::Value {
        json!({ "code": self.code.parts().0, "message": self.message })
    }
}

impl From<EngineError> for RpcError {
    fn from(error: EngineError) -> RpcError {
        match error {
            EngineError::Busy => RpcError::new(Code::ResourceExhausted, error.to_string()),
            error => RpcError::internal(&error),
        }
    }
}

impl IntoResponse for RpcError {
    fn into_response(self) -> Response {
        (self.code.parts().1, Json(self.json())).into_response()
    }
}

/// The message of a call with one answer.
#[derive(Debug)]
pub(crate) struct Message<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Message<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Message<T>, Response> {
        if !has_type(request.headers(), "application/json") {
            return Err(unsupported("application/json"));
        }
        let bytes =
            axum::body::Bytes::from_request(request, state).await.map_err(IntoResponse::into_response)?;
        let bytes = if bytes.is_empty() { b"{}" } else { &*bytes };
        parse(bytes).map(Message).map_err(IntoResponse::into_response)
    }
}

/// The first message of a call whose answer is a stream.
#[derive(Debug)]
pub(crate) struct StreamMessage<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for StreamMessage<T> {
    type Rejection = Response;

    async fn from_request(request: Request, _: &S) -> Result<StreamMessage<T>, Response> {
        let failed = |error| StreamError(error).into_response();
        let mut messages = Messages::of(request).ok_or_else(no_stream)?;
        let first = messages.next().await.map_err(failed)?;
        first.map(StreamMessage).ok_or_else(|| failed(RpcError::invalid("the stream has no message")))
    }
}

/// The messages of a request that is a stream, as they come.
#[derive(Debug)]
pub(crate) struct Messages {
    body: Body,
    buffer: Vec<u8>,
    is_over: bool,
}

impl Messages {
    /// Begins to read a stream; `None` if the body has another media type.
    pub(crate) fn of(request: Request) -> Option<Messages> {
        let is_stream = has_type(request.headers(), STREAM);
        is_stream.then(|| Messages { body: request.into_body(), buffer: Vec::new(), is_over: false })
    }

    /// Returns the next message; `None` after the last.
    ///
    /// # Errors
    /// When the stream breaks off, or a message is none.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, RpcError> {
        loop {
            if let Some((flags, message)) = self.take_frame()? {
                if flags & 1 != 0 {
                    return Err(RpcError::new(Code::Unimplemented, "messages are not compressed"));
                }
                return if flags & LAST == 0 { parse(&message).map(Some) } else { Ok(None) };
            }
            if self.is_over {
                let is_whole = self.buffer.is_empty();
                return if is_whole { Ok(None) } else { Err(RpcError::invalid("the stream broke off")) };
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.buffer.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
                Some(Err(_)) => return Err(RpcError::invalid("the stream broke off")),
                None => self.is_over = true,
            }
        }
    }

    fn take_frame(&mut self) -> Result<Option<(u8, Vec<u8>)>, RpcError> {
        let Some((&[flags, a, b, c, d], rest)) = self.buffer.split_first_chunk::<5>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        if length > LARGEST {
            return Err(RpcError::new(Code::ResourceExhausted, "a message has at most 4 MiB"));
        }
        let Some(message) = rest.get(..length).map(<[u8]>::to_vec) else { return Ok(None) };
        self.buffer.drain(..length + 5);
        Ok(Some((flags, message)))
    }
}

/// An error before the first message of a stream: a stream with the error only.
#[derive(Debug)]
pub(crate) struct StreamError(pub(crate) RpcError);

impl IntoResponse for StreamError {
    fn into_response(self) -> Response {
        stream(Body::from(last_frame(Some(&self.0))))
    }
}

/// Answers with a stream of frames.
pub(crate) fn stream(body: Body) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static(STREAM))], body).into_response()
}

/// A message as a frame.
///
/// # Errors
/// When the message cannot be JSON.
pub(crate) fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 5];
    serde_json::to_writer(&mut bytes, message)?;
    Ok(seal(0, bytes))
}

/// The last frame of a stream.
pub(crate) fn last_frame(error: Option<&RpcError>) -> Vec<u8> {
    let end = error.map_or_else(|| json!({}), |error| json!({ "error": error.json() }));
    let mut bytes = vec![0; 5];
    bytes.extend_from_slice(end.to_string().as_bytes());
    seal(LAST, bytes)
}

/// Writes the head of a frame, for which there is room.
fn seal(flags: u8, mut bytes: Vec<u8>) -> Vec<u8> {
    let length = u32::try_from(bytes.len().saturating_sub(5)).unwrap_or(u32::MAX);
    if let Some(head) = bytes.first_chunk_mut::<5>() {
        let [a, b, c, d] = length.to_be_bytes();
        *head = [flags, a, b, c, d];
    }
    bytes
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RpcError> {
    serde_json::from_slice(bytes)
        .map_err(|error| RpcError::invalid(format!("the message is not as expected: {error}")))
}

fn has_type(headers: &HeaderMap, wanted: &str) -> bool {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    given.split(';').next().is_some_and(|given| given.trim().eq_ignore_ascii_case(wanted))
}

fn unsupported(accepted: &'static str) -> Response {
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, [("accept-post", accepted)]).into_response()
}

/// The answer to a body that is no stream.
pub(crate) fn no_stream() -> Response {
    unsupported(STREAM)
}

/// An empty message.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Empty {}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(parts: &[&[u8]]) -> Result<Vec<serde_json::Value>, RpcError> {
        let bytes = parts.concat();
        let request = Request::post("/").header("content-type", "application/connect+json; charset=utf-8");
        let mut messages = Messages::of(request.body(Body::from(bytes)).unwrap()).unwrap();
        let mut all = Vec::new();
        while let Some(message) = messages.next().await? {
            all.push(message);
        }
        Ok(all)
    }

    #[tokio::test]
    async fn a_stream_is_read_as_it_was_written() {
        let (one, two) = (json!({ "a": 1 }), json!({ "b": "x" }));
        let (first, second) = (frame(&one).unwrap(), frame(&two).unwrap());
        assert_eq!(first[..5], [0, 0, 0, 0, 7]);
        assert_eq!(read(&[&first, &second]).await.unwrap(), [one.clone(), two.clone()]);
        assert_eq!(read(&[&first, &last_frame(None), &second]).await.unwrap(), [one]);
        assert!(read(&[]).await.unwrap().is_empty());
        for broken in [&first[..4], &first[..9], b"\0\0\0\0\x01x", b"\0\xff\xff\xff\xff", b"\x01\0\0\0\0"] {
            assert!(read(&[broken]).await.is_err(), "{broken:?}");
        }
    }

    #[test]
    fn other_media_types_are_refused() {
        let request = Request::post("/").header("content-type", "application/connect+proto");
        assert!(Messages::of(request.body(Body::empty()).unwrap()).is_none());
        let refused = no_stream();
        assert_eq!(refused.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
        assert_eq!(refused.headers()["accept-post"], STREAM);
    }
}
