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

/// Sends one event. Its fields are an object.
///
/// # Errors
/// When the reader is gone.
pub(crate) fn send_event(sink: &mut Sink, kind: &str, mut fields: Value) -> io::Result<()> {
    if let Some(fields) = fields.as_object_mut() {
        fields.insert("type".to_owned(), json!(kind));
        fields.insert("timestamp".to_owned(), time::current_time().into());
    }
    sink.write(format!("data: {fields}\n\n"))?;
    sink.flush()
}
