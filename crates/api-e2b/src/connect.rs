//! The Connect protocol: a message is a body, or a frame of a stream. A frame is one byte of flags, the length in four bytes (big
//! endian), and the message. Messages are JSON or protobuf, those of requests also in gzip. The handlers have JSON.

use std::borrow::Cow;
use std::io::{self, Write as _};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use flate2::write::MultiGzDecoder;
use http_body_util::BodyExt as _;
use penfold_server::EngineError;
use penfold_state::error_chain;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::protobuf::{self, Shape};

/// The media type of a stream.
const STREAM: &str = "application/connect+json";
/// The flag of a compressed message.
const COMPRESSED: u8 = 1;
/// The flag of the last frame of a stream.
const LAST: u8 = 2;
/// The largest message of a stream.
const LARGEST: usize = 4 << 20;
/// The most bytes that a message has without its compression, as the server reads of a body.
const UNPACKED: usize = 16 << 20;
/// The most compressed bytes that are unpacked at once: gzip makes at most a thousand times as many of them.
const PACKED: usize = 1024;

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

    fn json(&self) -> Value {
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

/// How the messages of a request are written.
#[derive(Debug, Clone, Copy)]
struct Form {
    /// That of protobuf; JSON without one.
    shape: Option<&'static Shape>,
    packing: Packing,
}

/// How the messages of a request are compressed.
#[derive(Debug, Clone, Copy)]
enum Packing {
    Plain,
    Gzip,
    Unknown,
}

impl Form {
    /// Reads the form from the head of a request, if it has one of these media types.
    fn of(request: &Request, types: MediaTypes, encoding: &str) -> Option<Form> {
        let shape = match types.index_of(request.headers())? {
            0 => None,
            _ => Some(protobuf::call(request.uri().path())?.0),
        };
        let packing = match request.headers().get(encoding).map(HeaderValue::as_bytes) {
            None | Some(b"identity") => Packing::Plain,
            Some(b"gzip") => Packing::Gzip,
            Some(_) => Packing::Unknown,
        };
        Some(Form { shape, packing })
    }

    /// Reads a message.
    fn parse<T: DeserializeOwned>(self, is_packed: bool, bytes: &[u8]) -> Result<T, RpcError> {
        let json = self.json(is_packed, bytes)?;
        serde_json::from_slice(&json)
            .map_err(|error| RpcError::invalid(format!("the message is not as expected: {error}")))
    }

    /// Returns a message as JSON.
    fn json(self, is_packed: bool, bytes: &[u8]) -> Result<Cow<'_, [u8]>, RpcError> {
        let bytes = match self.packing {
            _ if !is_packed => Cow::Borrowed(bytes),
            Packing::Plain => {
                return Err(RpcError::invalid("a message is compressed, and no header says how"));
            }
            Packing::Gzip => unpack(bytes)?.into(),
            Packing::Unknown => {
                let message = "the compression of the message is unknown; known: gzip, identity";
                return Err(RpcError::new(Code::Unimplemented, message));
            }
        };
        let Some(shape) = self.shape else { return Ok(bytes) };
        let message = protobuf::read(shape, &bytes).map(Value::Object);
        let message = message
            .ok_or_else(|| RpcError::invalid("the message cannot be read as protobuf of this call"))?;
        Ok(message.to_string().into_bytes().into())
    }
}

/// Unpacks a message in gzip.
fn unpack(bytes: &[u8]) -> Result<Vec<u8>, RpcError> {
    let broken = |_| RpcError::invalid("the message is not the gzip that its header says");
    let mut unpacker = MultiGzDecoder::new(Vec::new());
    // What one piece becomes is bounded.
    for piece in bytes.chunks(PACKED) {
        unpacker.write_all(piece).map_err(broken)?;
        if unpacker.get_ref().len() > UNPACKED {
            return Err(RpcError::new(
                Code::ResourceExhausted,
                "a message has at most 16 MiB without its compression",
            ));
        }
    }
    unpacker.finish().map_err(broken)
}

/// The message of a call with one answer.
#[derive(Debug)]
pub(crate) struct Message<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Message<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Message<T>, Response> {
        let form = Form::of(&request, UNARY, "content-encoding").ok_or_else(|| UNARY.refusal())?;
        let bytes = Bytes::from_request(request, state).await.map_err(|refused| {
            let code = match refused.status() {
                StatusCode::PAYLOAD_TOO_LARGE => Code::ResourceExhausted,
                _ => Code::InvalidArgument,
            };
            RpcError::new(code, refused.body_text()).into_response()
        })?;
        // Nothing is nothing in any compression.
        let is_packed = !bytes.is_empty() && !matches!(form.packing, Packing::Plain);
        let bytes = if bytes.is_empty() && form.shape.is_none() { b"{}" } else { &*bytes };
        form.parse(is_packed, bytes).map(Message).map_err(IntoResponse::into_response)
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
    form: Form,
    frames: Frames,
    is_over: bool,
}

impl Messages {
    /// Begins to read a stream; `None` if the body has another media type.
    pub(crate) fn of(request: Request) -> Option<Messages> {
        let form = Form::of(&request, STREAMS, "connect-content-encoding")?;
        Some(Messages { body: request.into_body(), form, frames: Frames::default(), is_over: false })
    }

    /// Returns the next message; `None` after the last.
    ///
    /// # Errors
    /// When the stream breaks off, or a message is none.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, RpcError> {
        loop {
            if let Some((flags, message)) = self.frames.take()? {
                let is_packed = flags & COMPRESSED != 0;
                return if flags & LAST == 0 {
                    self.form.parse(is_packed, &message).map(Some)
                } else {
                    Ok(None)
                };
            }
            if self.is_over {
                let is_whole = self.frames.0.is_empty();
                return if is_whole { Ok(None) } else { Err(RpcError::invalid("the stream broke off")) };
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.frames.0.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
                Some(Err(_)) => return Err(RpcError::invalid("the stream broke off")),
                None => self.is_over = true,
            }
        }
    }
}

/// The bytes of a stream that were not taken yet.
#[derive(Debug, Default)]
struct Frames(Vec<u8>);

impl Frames {
    /// Takes the next frame, if it is whole: its flags, and its message.
    fn take(&mut self) -> Result<Option<(u8, Vec<u8>)>, RpcError> {
        let Some((&[flags, a, b, c, d], rest)) = self.0.split_first_chunk::<5>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        if length > LARGEST {
            return Err(RpcError::new(Code::ResourceExhausted, "a message of a stream has at most 4 MiB"));
        }
        let Some(message) = rest.get(..length).map(<[u8]>::to_vec) else { return Ok(None) };
        self.0.drain(..length + 5);
        Ok(Some((flags, message)))
    }
}

/// Passes a request on, and writes the answer as protobuf if the request is. Errors stay JSON, as Connect has them.
pub(crate) async fn answer_in_kind(request: Request, next: Next) -> Response {
    let is_protobuf = [UNARY, STREAMS].into_iter().any(|types| types.index_of(request.headers()) == Some(1));
    let Some((_, shape)) = protobuf::call(request.uri().path()).filter(|_| is_protobuf) else {
        return next.run(request).await;
    };
    let (mut parts, body) = next.run(request).await.into_parts();
    let said = [UNARY, STREAMS].into_iter().find(|types| types.index_of(&parts.headers) == Some(0));
    let Some(MediaTypes([json, protobuf])) = said.filter(|_| parts.status == StatusCode::OK) else {
        return Response::from_parts(parts, body);
    };
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(protobuf));
    parts.headers.remove(header::CONTENT_LENGTH);
    if json == STREAM {
        let mut frames = Frames::default();
        let body = body.map_frame(move |frame| frame.map_data(|data| rewrite(&mut frames, shape, &data)));
        return Response::from_parts(parts, Body::new(body));
    }
    match body.collect().await.map(|body| serde_json::from_slice(&body.to_bytes())) {
        Ok(Ok(message)) => Response::from_parts(parts, protobuf::write(shape, &message).into()),
        Ok(Err(error)) => RpcError::internal(&error).into_response(),
        Err(error) => RpcError::internal(&error).into_response(),
    }
}

/// Rewrites the frames of an answer that are whole by now. The last frame is JSON in either form.
fn rewrite(frames: &mut Frames, shape: &Shape, data: &[u8]) -> Bytes {
    frames.0.extend_from_slice(data);
    let mut out = Vec::new();
    while let Ok(Some((flags, message))) = frames.take() {
        let message = match serde_json::from_slice(&message) {
            Ok(json) if flags & LAST == 0 => protobuf::write(shape, &json),
            _ => message,
        };
        out.extend_from_slice(&seal(flags, [&[0; 5], &*message].concat()));
    }
    out.into()
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

/// The media types of a call: JSON, and protobuf.
#[derive(Debug, Clone, Copy)]
struct MediaTypes([&'static str; 2]);

const UNARY: MediaTypes = MediaTypes(["application/json", "application/proto"]);
const STREAMS: MediaTypes = MediaTypes([STREAM, "application/connect+proto"]);

impl MediaTypes {
    /// Which of the two these headers say.
    fn index_of(self, headers: &HeaderMap) -> Option<usize> {
        let given =
            headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let given = given.split(';').next().unwrap_or_default().trim();
        self.0.iter().position(|known| given.eq_ignore_ascii_case(known))
    }

    /// The answer to a body of another type.
    fn refusal(self) -> Response {
        (StatusCode::UNSUPPORTED_MEDIA_TYPE, [("accept-post", self.0.join(", "))]).into_response()
    }
}

/// The answer to a body that is no stream.
pub(crate) fn no_stream() -> Response {
    STREAMS.refusal()
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
        let request = Request::post("/").header("content-type", "application/grpc");
        assert!(Messages::of(request.body(Body::empty()).unwrap()).is_none());
        let refused = no_stream();
        assert_eq!(refused.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
        assert_eq!(refused.headers()["accept-post"], "application/connect+json, application/connect+proto");
    }
}
