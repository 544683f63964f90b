//! Server-sent events.

use std::fmt::Display;
use std::io;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;

use crate::sent_body::Sink;

/// The media type.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";

/// An answer with events.
pub(crate) fn response(body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, EVENT_STREAM),
        (header::CACHE_CONTROL, "no-store"),
        // For proxies that would hold events back.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, body).into_response()
}

/// Sends one event with a name, an id and JSON as its data.
///
/// # Errors
/// When the reader is gone.
pub(crate) fn send(
    sink: &mut Sink,
    name: &str,
    id: Option<&dyn Display>,
    data: &impl Serialize,
) -> io::Result<()> {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    // JSON has no line feed outside of texts, and escapes those inside.
    let data = serde_json::to_string(data)?;
    sink.write(format!("event: {name}\n{id}data: {data}\n\n"))
}

/// Sends a comment, which readers ignore: it shows that the stream lives, and finds readers that are gone.
///
/// # Errors
/// When the reader is gone.
pub(crate) fn beat(sink: &mut Sink) -> io::Result<()> {
    sink.write(":\n\n")?;
    sink.flush()
}

/// The id of the last event that the reader has received.
pub(crate) fn last_event_id(headers: &HeaderMap) -> Option<&str> {
    headers.get("last-event-id").and_then(|id| id.to_str().ok()).filter(|id| !id.is_empty())
}

/// Tells whether the caller accepts a stream of events, and names no other type before.
pub(crate) fn is_accepted(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    accept.split(',').next().is_some_and(|first| first.trim().starts_with(EVENT_STREAM))
}
