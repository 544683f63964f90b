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

/// Takes a body of events apart again; it comes in parts of any size.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// The beginning of a line.
    begun: Vec<u8>,
}

impl Events {
    /// Returns the JSON of the events that this part of the body completes.
    pub(crate) fn read(&mut self, part: &[u8]) -> Vec<String> {
        let Some(end) = part.iter().rposition(|&byte| byte == b'\n') else {
            self.begun.extend_from_slice(part);
            return Vec::new();
        };
        let (lines, rest) = part.split_at(end + 1);
        self.begun.extend_from_slice(lines);
        let lines = std::mem::replace(&mut self.begun, rest.to_vec());
        let data = lines.split(|&byte| byte == b'\n').filter_map(|line| line.strip_prefix(b"data: "));
        data.map(|data| String::from_utf8_lossy(data).into_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_in_parts_of_any_size() {
        let body = "data: {\"a\":1}\n\ndata: \u{e4}\n\n: nothing\n\ndata: 3\n\n";
        for size in 1..=body.len() {
            let mut events = Events::default();
            let read: Vec<String> = body.as_bytes().chunks(size).flat_map(|part| events.read(part)).collect();
            assert_eq!(read, ["{\"a\":1}", "\u{e4}", "3"], "{size}");
        }
    }
}
