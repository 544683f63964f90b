//! Logs: a part, or all output until the end.

use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penfold_state::ExitStatus;
use penfold_state::log::Stream;
use penfold_teardown::Cause;
use serde::Deserialize;

use crate::client::Client;
use crate::error::{Error, Problem, RECONNECT};
use crate::event_parser::{Event, Received};
use crate::events::Events;

/// Bytes from one stream, read at one time.
#[derive(Debug, Clone, Deserialize)]
pub struct LogFrame {
    /// The offset of the first byte; 0 for what a terminal shows.
    #[serde(default)]
    pub offset: u64,
    /// The stream.
    #[serde(deserialize_with = "stream")]
    pub stream: Stream,
    /// The time of the read, in nanoseconds since 1970; 0 for what a terminal shows.
    #[serde(default)]
    pub time_ns: u64,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    base64: Option<String>,
}

impl LogFrame {
    /// The output.
    pub fn bytes(self) -> Vec<u8> {
        match (self.text, self.base64) {
            (Some(text), _) => text.into_bytes(),
            (None, Some(code)) => STANDARD.decode(code).unwrap_or_default(),
            (None, None) => Vec::new(),
        }
    }
}

/// A part of a log.
#[derive(Debug, Clone, Deserialize)]
pub struct LogRange {
    /// The output.
    pub frames: Vec<LogFrame>,
    /// The offset at which the next part begins.
    pub next_offset: u64,
    /// Whether no more output will come.
    pub complete: bool,
    /// The bytes that were overwritten before they were read.
    #[serde(default)]
    pub missed_bytes: u64,
    /// The bytes that were lost because the disk was full.
    #[serde(default)]
    pub lost_bytes: u64,
    /// The bytes of the log that are damaged.
    #[serde(default)]
    pub damaged_bytes: u64,
}

/// How a command ended, as the end of its log says.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct LogEnd {
    /// How the command ended; `None` if unknown.
    #[serde(default)]
    pub exit: Option<ExitStatus>,
    /// Why it ended.
    #[serde(default)]
    pub cause: Option<Cause>,
}

/// An event of a followed log.
#[derive(Debug, Clone)]
pub enum LogEvent {
    /// Output.
    Output(LogFrame),
    /// This many bytes were overwritten before they were read.
    Missed(u64),
    /// This many bytes were lost because the disk was full.
    Lost(u64),
    /// This many bytes of the log are damaged.
    Damaged(u64),
    /// Nothing for a while.
    Silence,
    /// All input of this client was written.
    InputEnded,
    /// The command has ended, and all output was read.
    End(LogEnd),
}

#[derive(Deserialize)]
struct Gap {
    bytes: u64,
}

/// A log that is followed to its end. A lost connection is made again: no byte is lost or comes twice.
#[derive(Debug)]
pub struct Follow<'a> {
    client: &'a Client,
    path: String,
    events: Option<Events>,
    last_id: Option<String>,
    /// When the server was found away.
    away: Option<Instant>,
}

impl<'a> Follow<'a> {
    /// Follows the log at a path, with its query.
    pub fn new(client: &'a Client, path: String) -> Follow<'a> {
        Follow { client, path, events: None, last_id: None, away: None }
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// When the server has been away for [`RECONNECT`], or was never there, or answers with an error.
    pub fn next_event(&mut self) -> Result<LogEvent, Error> {
        loop {
            match self.try_next() {
                Ok(Some(event)) => {
                    self.away = None;
                    return Ok(event);
                }
                Ok(None) => {}
                Err(error) if error.is_passing() && self.may_retry(&error) => {
                    self.events = None;
                    self.client.pause();
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn may_retry(&mut self, error: &Error) -> bool {
        // Nothing was ever received: a wrong address is told at once.
        let is_first = self.events.is_none() && self.away.is_none() && self.last_id.is_none();
        if is_first && matches!(error, Error::Unreachable { .. }) {
            return false;
        }
        self.away.get_or_insert_with(Instant::now).elapsed() < RECONNECT
    }

    fn try_next(&mut self) -> Result<Option<LogEvent>, Error> {
        let events = if let Some(events) = &mut self.events {
            events
        } else {
            let opened = Events::open(self.client, &self.path, self.last_id.as_deref())?;
            self.events.insert(opened)
        };
        match events.next(self.client)? {
            None => Err(self.client.lost("the stream ended before the log did")),
            Some(Received::Comment) => Ok(Some(LogEvent::Silence)),
            Some(Received::Event(event)) => {
                let parsed = parse(self.client, &event)?;
                if event.id.is_some() {
                    self.last_id = event.id;
                }
                Ok(parsed)
            }
        }
    }
}

/// Reads an event; `None` for a name that a newer server may send.
pub(crate) fn parse(client: &Client, event: &Event) -> Result<Option<LogEvent>, Error> {
    fn read<'a, T: Deserialize<'a>>(client: &Client, event: &'a Event) -> Result<T, Error> {
        serde_json::from_slice(event.data.as_bytes()).map_err(|error| client.foreign(&error))
    }
    let gap = || read::<Gap>(client, event).map(|gap| gap.bytes);
    Ok(Some(match event.name.as_str() {
        "stdout" | "stderr" => LogEvent::Output(read(client, event)?),
        "lagged" => LogEvent::Missed(gap()?),
        "lost" => LogEvent::Lost(gap()?),
        "damaged" => LogEvent::Damaged(gap()?),
        "end" => LogEvent::End(read(client, event)?),
        "error" => return Err(Error::Problem(Box::new(read::<Problem>(client, event)?))),
        _ => return Ok(None),
    }))
}

fn stream<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Stream, D::Error> {
    match String::deserialize(deserializer)?.as_str() {
        "stdout" => Ok(Stream::Stdout),
        "stderr" => Ok(Stream::Stderr),
        _ => Err(serde::de::Error::custom("not a stream")),
    }
}
