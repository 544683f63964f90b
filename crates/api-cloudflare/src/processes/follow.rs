//! Streams of a process: what it wrote and writes, and its end.

use std::io;
use std::os::fd::OwnedFd;

use axum::response::Response;
use penfold_control::execs;
use penfold_server::Drain;
use penfold_server::execs::{Follower, ObservedEnd};
use penfold_server::log_stream::{self, Piece, StreamEnd};
use penfold_server::sent_body::{self, Sink};
use penfold_state::Files;
use penfold_state::log::{LogEntry, LogError, LogPosition, LogReader, Stream};
use rustix::event::Timespec;
use serde_json::{Value, json};

use crate::api::ApiState;
use crate::error::ApiError;
use crate::json_body::Utf8;
use crate::sse;

use super::status::{self, Told};

/// The time for the last event of a stream that breaks off.
const FLUSH: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A stream that is to be sent.
#[derive(Debug)]
pub(super) struct Following {
    pub(super) files: Files,
    pub(super) number: u32,
    /// Keeps the record until the stream has its end.
    pub(super) held: Option<OwnedFd>,
    /// The first event.
    pub(super) first: (&'static str, Value),
    /// Fields of each further event.
    pub(super) common: Value,
    pub(super) last: fn(Told) -> (&'static str, Value),
}

/// Answers with a stream that ends after the end of the process.
///
/// # Errors
/// When there are as many streams as there can be, or there is no room for a thread.
pub(super) fn answer_with_stream(api: &ApiState, following: Following) -> Result<Response, ApiError> {
    let place = api.app.engine.follower().ok_or_else(ApiError::too_many_streams)?;
    let followed = (following.files.name().to_owned(), following.number);
    let theirs = std::sync::Arc::clone(api);
    let made = sent_body::followed_body(move |sink| {
        let _place = place;
        let _in_use = theirs.leases.begin_use(&following.files);
        following.write(sink, &theirs.app.drain)
    });
    let (body, wake, open) = made.map_err(|error| ApiError::full(&error))?;
    api.followers.add(followed, Follower { wake, open });
    Ok(sse::event_stream(body))
}

impl Following {
    /// Writes the stream. The returned reader is to be dropped late: the kernel takes about 15 ms to close its inotify
    /// descriptor, and the end must not wait for that.
    fn write(mut self, sink: &mut Sink, drain: &Drain) -> io::Result<Option<LogReader>> {
        let _held = self.held.take();
        let (kind, fields) = self.first.clone();
        sse::send_event(sink, kind, fields)?;
        let mut kept = None;
        let end = match execs::open_exec_log(&self.files, self.number, LogPosition::Start) {
            Ok(reader) => {
                // What was overwritten before this follower came.
                if reader.offset() > 0 {
                    sse::send_event(sink, "lagged", self.event(json!({ "bytes": reader.offset() })))?;
                }
                let Some(end) = self.copy(sink, kept.insert(reader), drain)? else {
                    // The stream is not complete, and must not look so.
                    let error = json!({ "error": "the server is ending; the process goes on" });
                    sse::send_event(sink, "error", self.event(error))?;
                    // A reset would overtake the event.
                    let _ = rustix::event::poll(&mut [], Some(&FLUSH));
                    return Err(io::ErrorKind::Interrupted.into());
                };
                end
            }
            Err(LogError::Missing) => {
                ObservedEnd::of(&self.files, self.number).ok_or(io::ErrorKind::NotFound)?
            }
            Err(error) => return Err(io::Error::other(error)),
        };
        let (kind, fields) = (self.last)(status::ended_status(end.exit, end.cause));
        sse::send_event(sink, kind, self.event(fields))?;
        Ok(kept)
    }

    /// Copies the output until the process has ended, and returns the end; `None` if the server ends before.
    ///
    /// An end that was seen stays: while the record of its sandbox is removed, it cannot be observed any more.
    fn copy(
        &self,
        sink: &mut Sink,
        reader: &mut LogReader,
        drain: &Drain,
    ) -> io::Result<Option<ObservedEnd>> {
        let mut decoders = [Utf8::default(), Utf8::default()];
        let mut end = None;
        let has_ended = || {
            end = end.or_else(|| ObservedEnd::of(&self.files, self.number));
            end.is_some()
        };
        let each = |sink: &mut Sink, piece: Piece<'_>| self.piece(sink, &piece, &mut decoders);
        if log_stream::follow_log(sink, reader, drain, None, (has_ended, each))? == StreamEnd::Draining {
            return Ok(None);
        }
        for (stream, decoder) in [Stream::Stdout, Stream::Stderr].into_iter().zip(&mut decoders) {
            let mut text = String::new();
            decoder.end(&mut text);
            self.output(sink, stream, &text)?;
        }
        Ok(end)
    }

    fn piece(&self, sink: &mut Sink, piece: &Piece<'_>, decoders: &mut [Utf8; 2]) -> io::Result<()> {
        match piece {
            Piece::Entry(LogEntry::Data { stream, bytes, .. }, _) => {
                let [stdout, stderr] = decoders;
                let decoder = if *stream == Stream::Stdout { stdout } else { stderr };
                let mut text = String::new();
                decoder.decode(bytes, &mut text);
                self.output(sink, *stream, &text)
            }
            Piece::Entry(
                LogEntry::Lost { bytes, .. } | LogEntry::Missed { bytes } | LogEntry::Damaged { bytes, .. },
                _,
            ) => sse::send_event(sink, "lagged", self.event(json!({ "bytes": bytes }))),
            Piece::Silence => Ok(()),
        }
    }

    fn output(&self, sink: &mut Sink, stream: Stream, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let kind = if stream == Stream::Stdout { "stdout" } else { "stderr" };
        sse::send_event(sink, kind, self.event(json!({ "data": text })))
    }

    fn event(&self, mut fields: Value) -> Value {
        if let (Some(fields), Some(common)) = (fields.as_object_mut(), self.common.as_object()) {
            fields.extend(common.clone());
        }
        fields
    }
}
