//! Streams of events: `data: <json>` and an empty line, without names, ids and heartbeats.

use std::io;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use penfold_server::sent_body::Sink;
use serde_json::{Value, json};

use super::time;

/// Answers with a body of events.
pub(crate) fn event_stream(body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONNECTION, "keep-alive"),
    ];
    (headers, body).into_response()
}

/// Returns the text of one event. Its fields are an object; the time is that of this call, unless it is one of them.
pub(crate) fn event_text(kind: &str, mut fields: Value) -> String {
    if let Some(fields) = fields.as_object_mut() {
        fields.insert("type".to_owned(), json!(kind));
        fields.entry("timestamp").or_insert_with(|| time::current_time().into());
    }
    format!("data: {fields}\n\n")
}

/// Sends one event. Its fields are an object.
///
/// # Errors
/// When the reader is gone.
pub(crate) fn send_event(sink: &mut Sink, kind: &str, fields: Value) -> io::Result<()> {
    sink.write(event_text(kind, fields))?;
    sink.flush()
}
