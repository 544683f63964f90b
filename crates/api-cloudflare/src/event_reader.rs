//! Reads the events of an answer, one after the other.

use axum::body::Body;
use http_body_util::BodyExt as _;
use serde_json::Value as Json;

/// Reads the server-sent events of a body: each is one line with an object.
#[derive(Debug)]
pub(crate) struct EventReader {
    body: Body,
    text: Vec<u8>,
}

impl EventReader {
    pub(crate) fn new(body: Body) -> EventReader {
        EventReader { body, text: Vec::new() }
    }

    /// Returns the next event, and the length of its text; `None` at the end. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// When the body breaks off.
    pub(crate) async fn next(&mut self) -> Result<Option<(Json, usize)>, String> {
        loop {
            while let Some(end) = self.text.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                let event = line.strip_prefix(b"data: ").and_then(|event| serde_json::from_slice(event).ok());
                if let Some(event) = event {
                    return Ok(Some((event, line.len())));
                }
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => self.text.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Some(Err(error)) => return Err(format!("the stream broke off: {error}")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;
    use penfold_server::sent_body::queued_body;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn events_are_found_wherever_the_body_is_divided() {
        let (sender, body) = queued_body();
        let mut events = EventReader::new(body);
        for part in ["data: {\"a\":", "1}\n", "\ndata: {}\n\ndata: no JSON\n\nother\n", "data: 3"] {
            sender.send(Ok(Bytes::from(part))).await.unwrap();
        }
        drop(sender);
        assert_eq!(events.next().await, Ok(Some((json!({ "a": 1 }), 14))));
        assert_eq!(events.next().await, Ok(Some((json!({}), 9))));
        assert_eq!(events.next().await, Ok(None));
    }
}
