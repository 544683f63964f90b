//! Server-sent events of one answer.

use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::Method;
use hyper::body::{Bytes, Incoming};

use crate::client::Client;
use crate::error::Error;
use crate::event_parser::{EventParser, Received};

/// The server sends a comment after 15 s without an event: after this time the connection counts as lost.
const SILENCE: Duration = Duration::from_secs(45);
/// The longest event.
const LONGEST: usize = 16 << 20;

/// The events of one answer.
#[derive(Debug)]
pub(crate) struct Events {
    body: Incoming,
    parser: EventParser,
}

impl Events {
    /// Sends the request.
    pub(crate) fn open(client: &Client, path: &str, last_id: Option<&str>) -> Result<Events, Error> {
        let headers: Vec<(&str, &str)> = [("accept", "text/event-stream")]
            .into_iter()
            .chain(last_id.map(|id| ("last-event-id", id)))
            .collect();
        let response = client.runtime.block_on(client.open(Method::GET, path, &headers, Bytes::new()))?;
        Ok(Events { body: response.into_body(), parser: EventParser::default() })
    }

    /// Waits for the next event; `None` at the end of the answer.
    pub(crate) fn next(&mut self, client: &Client) -> Result<Option<Received>, Error> {
        loop {
            if let Some(received) = self.parser.take() {
                return Ok(Some(received));
            }
            let frame =
                client.runtime.block_on(async { tokio::time::timeout(SILENCE, self.body.frame()).await });
            match frame {
                Err(_) => return Err(client.lost("the server is silent")),
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => {
                    let frame = frame.map_err(|error| client.lost(error))?;
                    self.parser.feed(frame.data_ref().map_or(&[], |bytes| bytes));
                    if self.parser.length() > LONGEST {
                        return Err(client.foreign(&"an event is too long"));
                    }
                }
            }
        }
    }
}
