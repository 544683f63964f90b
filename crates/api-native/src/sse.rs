//! Server-sent events.

use std::fmt::Display;
use std::io;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use penfold_server::sent_body::Sink;
use serde::Serialize;

/// The media type.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";

/// An answer with events.
pub(crate) fn event_response(body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, EVENT_STREAM),
        (header::CACHE_CONTROL, "no-store"),
        // For proxies that would hold events back.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, body).into_response()
}

/// A comment, which readers ignore: it shows that the stream lives, and finds readers that are gone.
pub(crate) const BEAT: &[u8] = b":\n\n";

/// Sends one event with a name, an id and JSON as its data.
///
/// # Errors
/// When the reader is gone.
pub(crate) fn send_event(
    out: &mut impl io::Write,
    name: &str,
    id: Option<&dyn Display>,
    data: &impl Serialize,
) -> io::Result<()> {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    // JSON has no line feed outside of texts, and escapes those inside.
    let data = serde_json::to_string(data)?;
    out.write_all(format!("event: {name}\n{id}data: {data}\n\n").as_bytes())
}

/// Sends a [`BEAT`].
///
/// # Errors
/// When the reader is gone.
pub(crate) fn send_beat(sink: &mut Sink) -> io::Result<()> {
    sink.write(BEAT)?;
    sink.flush()
}

/// The id of the last event that the reader has received; without one, or with an empty one, the stream begins anew.
///
/// # Errors
/// A sentence, if the header is none: a stream that begins anew instead would repeat events.
pub(crate) fn last_event_id(headers: &HeaderMap) -> Result<Option<&str>, &'static str> {
    let mut given = headers.get_all("last-event-id").iter();
    let Some(id) = given.next() else { return Ok(None) };
    if given.next().is_some() {
        return Err("sent twice");
    }
    id.to_str().map(|id| Some(id).filter(|id| !id.is_empty())).map_err(|_| "not the id of an event")
}

/// Tells whether the caller accepts a stream of events, and names no other type before.
pub(crate) fn is_accepted(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    accept.split(',').next().is_some_and(|first| first.trim().starts_with(EVENT_STREAM))
}

#[cfg(test)]
mod tests {
    use penfold_client::{Event, EventParser, Received};

    use super::*;
    use penfold_server::sent_body;

    #[test]
    fn an_id_that_cannot_be_read_is_no_new_stream() {
        let of = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("last-event-id", header::HeaderValue::from_bytes(value).unwrap());
            }
            last_event_id(&headers).map(|id| id.map(str::to_owned))
        };
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[b""]), Ok(None));
        assert_eq!(of(&[b"7"]), Ok(Some("7".to_owned())));
        assert!(of(&[b"\xff"]).is_err());
        assert!(of(&[b"7", b"8"]).is_err());
    }

    #[test]
    fn whatever_is_sent_the_client_reads_it_back() {
        let texts = [
            "",
            "a\nb",
            "\r",
            "\r\n\r\n",
            "\n\ndata: x\n\n",
            ": x",
            "\0",
            "\u{85}\u{2028}\u{2029}",
            "\u{feff}\u{fffd}é😀",
        ];
        let body = sent_body::written_body(move |sink| {
            for text in texts {
                send_event(sink, "stdout", Some(&7), &text)?;
                send_beat(sink)?;
                send_event(sink, "end", None, &serde_json::json!({ text: [text] }))?;
            }
            Ok(())
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let bytes = runtime.block_on(axum::body::to_bytes(body.unwrap(), usize::MAX)).unwrap();
        for size in [1, 2, 3, 7, bytes.len()] {
            let mut parser = EventParser::default();
            bytes.chunks(size).for_each(|piece| parser.feed(piece));
            let mut read = || parser.take().unwrap();
            for text in texts {
                let event = |name: &str, id: Option<&str>, data: String| {
                    Received::Event(Event { name: name.to_owned(), id: id.map(str::to_owned), data })
                };
                assert_eq!(read(), event("stdout", Some("7"), serde_json::to_string(text).unwrap()));
                assert_eq!(read(), Received::Comment);
                let data = serde_json::json!({ text: [text] }).to_string();
                assert_eq!(read(), event("end", None, data));
            }
            assert_eq!((parser.take(), parser.length()), (None, 0));
        }
    }
}
