//! Logs of sandboxes, execs and sessions: a range, the raw bytes, or a stream of events.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penfold_control::Scope;
use penfold_server::AppState;
use penfold_server::log_stream::{self, Piece, StreamEnd, entry_length};
use penfold_server::sent_body::{self, Sink};
use penfold_server::shared_stream::{PART, SharedStreams, Source};
use penfold_state::error_chain;
use penfold_state::log::{LogEntry, LogError, LogPlace, LogPosition, LogReader, Stream};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use super::problem::{Kind, Problem};
use crate::sse;

/// The part of a log that is wanted, and its form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LogQuery {
    /// Where to begin: an offset from an earlier answer. Without it, at the oldest output that is kept.
    offset: Option<u64>,
    /// Begin this many lines before the end.
    lines: Option<u64>,
    /// The most bytes of output, up to 1048576; default 65536. Not with `follow` or `format=raw`.
    #[param(minimum = 1, maximum = 1_048_576)]
    limit: Option<u64>,
    /// Only this stream.
    stream: Option<LogStream>,
    /// Whether to go on with new output until the end, as server-sent events. `Accept: text/event-stream` means the same.
    #[serde(default)]
    follow: bool,
    /// `raw`: the bytes themselves, as `application/octet-stream`.
    #[serde(default)]
    #[param(inline)]
    format: LogFormat,
}

/// A stream of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The form of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum LogFormat {
    /// JSON, or events with JSON.
    #[default]
    Json,
    /// The bytes.
    Raw,
}

/// Bytes from one stream, read at one time.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LogFrame {
    /// The offset of the first byte.
    offset: u64,
    /// The stream.
    stream: LogStream,
    /// The time of the read, in nanoseconds since 1970.
    time_ns: u64,
    /// The bytes, if they are UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// The bytes in Base64, if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

/// A part of a log.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct LogRange {
    /// The output.
    frames: Vec<LogFrame>,
    /// The offset at which the next part begins.
    next_offset: u64,
    /// Whether this was the last part: no more output will come.
    complete: bool,
    /// The length of the part, including the heads of frames, that was overwritten before it was read.
    missed_bytes: u64,
    /// The bytes that were lost because the disk was full.
    lost_bytes: u64,
    /// The bytes of the log that are damaged.
    damaged_bytes: u64,
}

/// A server-sent event of a followed log.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "describes the events")]
pub(super) struct LogEvent {
    /// - `stdout`, `stderr`: output.
    /// - `lagged`: output was overwritten before this reader took it. `lost`: the disk was full. `damaged`: the log is.
    /// - `end`: the command has ended, and all output was sent.
    /// - `error`: the stream ends before the log does.
    event: String,
    /// The offset of the next byte, for `Last-Event-ID`.
    #[schema(nullable = false)]
    id: Option<String>,
    /// JSON: a `LogFrame` for output; `bytes`, their number, for a gap; the end of the command, as far as it is known; a
    /// `Problem` for an error.
    #[schema(content_media_type = "application/json")]
    data: String,
}

/// A log, and its end.
pub(super) struct LogSource {
    pub(super) reader: LogReader,
    pub(super) end: LogEnd,
}

/// The end of a log: the data of the `end` event, once no more output will come.
///
/// An end that was seen stays: while the record of its sandbox is removed, it cannot be observed any more.
pub(super) struct LogEnd {
    observe: Box<dyn FnMut() -> Option<Value> + Send>,
    seen: Option<Value>,
}

impl LogEnd {
    /// `observe` returns `None` as long as more output may come.
    pub(super) fn new(observe: impl FnMut() -> Option<Value> + Send + 'static) -> LogEnd {
        LogEnd { observe: Box::new(observe), seen: None }
    }

    fn has_come(&mut self) -> bool {
        self.seen = self.seen.take().or_else(&mut self.observe);
        self.seen.is_some()
    }
}

/// The default and the largest `limit`.
const USUAL: u64 = 64 << 10;
const LARGEST: u64 = 1 << 20;
/// The largest offset: that of a file.
const LARGEST_OFFSET: u64 = i64::MAX.cast_unsigned();
/// The bytes of a log that are read at one time for one follower, wanted or not.
const READ: u64 = 256 << 10;
/// A comment is sent after this time without output.
const SILENCE: Duration = Duration::from_secs(15);

impl LogQuery {
    /// All output from a place on, and what is still to come.
    pub(super) fn followed(offset: Option<u64>, lines: Option<u64>) -> LogQuery {
        LogQuery { offset, lines, follow: true, ..LogQuery::default() }
    }

    /// Where to begin to read.
    fn from(&self, headers: &HeaderMap) -> Result<LogPosition, Problem> {
        if let Some(id) = sse::last_event_id(headers).map_err(|why| Problem::field("Last-Event-ID", why))? {
            let offset = id.parse().map_err(|_| Problem::field("Last-Event-ID", "not an offset"))?;
            return Ok(LogPosition::Offset(valid_offset("Last-Event-ID", offset)?));
        }
        match (self.offset, self.lines) {
            (Some(_), Some(_)) => Err(Problem::field("lines", "not together with `offset`")),
            (Some(offset), None) => Ok(LogPosition::Offset(valid_offset("offset", offset)?)),
            (None, Some(lines)) if lines > LARGEST_OFFSET => {
                Err(Problem::field("lines", "more than any log has"))
            }
            (None, Some(lines)) => Ok(LogPosition::Last { lines, of: self.stream.map(Into::into) }),
            (None, None) => Ok(LogPosition::Start),
        }
    }

    fn has(&self, stream: Stream) -> bool {
        self.stream.is_none_or(|wanted| wanted == stream.into())
    }
}

/// Checks an offset. A program without integers of 64 bits could not send a larger one back.
fn valid_offset(field: &str, offset: u64) -> Result<u64, Problem> {
    if offset > LARGEST_OFFSET { Err(Problem::field(field, "beyond any log")) } else { Ok(offset) }
}

impl std::convert::From<Stream> for LogStream {
    fn from(stream: Stream) -> LogStream {
        match stream {
            Stream::Stdout => LogStream::Stdout,
            Stream::Stderr => LogStream::Stderr,
        }
    }
}

impl std::convert::From<LogStream> for Stream {
    fn from(stream: LogStream) -> Stream {
        match stream {
            LogStream::Stdout => Stream::Stdout,
            LogStream::Stderr => Stream::Stderr,
        }
    }
}

/// Answers with a log that `open` opens, off the runtime.
pub(super) async fn answer(
    (app, feeds): (AppState, LogFeeds),
    query: LogQuery,
    headers: HeaderMap,
    open: impl FnOnce(&Scope, LogPosition) -> Result<LogSource, Problem> + Send + 'static,
) -> Result<Response, Problem> {
    let from = query.from(&headers)?;
    let follows = query.follow || sse::is_accepted(&headers);
    let is_raw = query.format == LogFormat::Raw;
    if query.limit.is_some_and(|limit| !(1..=LARGEST).contains(&limit)) {
        return Err(Problem::field("limit", "not a number from 1 to 1048576"));
    }
    if !follows && !is_raw {
        let range = app.engine.call(move |scope| range(open(scope, from)?, &query)).await??;
        return Ok(axum::Json(range).into_response());
    }
    let source = app.engine.call(move |scope| open(scope, from)).await??;
    let body = if follows { follow(&app, &feeds, source, &query)? } else { raw_body(&app, source, query)? };
    if is_raw {
        let headers =
            [(header::CONTENT_TYPE, "application/octet-stream"), (header::CACHE_CONTROL, "no-store")];
        return Ok((headers, body).into_response());
    }
    Ok(sse::event_response(body))
}

/// Returns a body that goes on until the end of the log.
fn follow(app: &AppState, feeds: &LogFeeds, source: LogSource, query: &LogQuery) -> Result<Body, Problem> {
    let key = source.reader.identity().map_err(|error| unreadable_log(&error))?;
    let place = source.reader.place();
    // Where a follower began makes no difference for what comes next.
    let form = LogQuery { stream: query.stream, format: query.format, ..LogQuery::default() };
    feeds.follow(app, key, LogFeed { source, pause: None }, (place, form)).ok_or_else(too_many)
}

/// Returns a body with the raw bytes that there are.
fn raw_body(app: &AppState, source: LogSource, query: LogQuery) -> Result<Body, Problem> {
    let permit = app.engine.follower().ok_or_else(too_many)?;
    let write = move |sink: &mut Sink| {
        let _permit = permit;
        raw(sink, source.reader, &query)
    };
    sent_body::written_body(write).map_err(|error| {
        Problem::new(Kind::TooMany, format!("cannot start a stream: {}", error_chain(&error)))
    })
}

/// The problem of a stream beyond the limit.
pub(super) fn too_many() -> Problem {
    Problem::new(Kind::TooMany, "this server has as many open streams as it can have")
}

/// The problem of a log that cannot be read.
pub(super) fn unreadable_log(error: &LogError) -> Problem {
    let kind = match error {
        LogError::Missing => Kind::NotFound,
        LogError::Stranger { .. } => Kind::NotPermitted,
        LogError::Io { .. } | LogError::Damaged(_) | LogError::Newer => Kind::Internal,
    };
    Problem::new(kind, error_chain(error))
}

fn range(mut source: LogSource, query: &LogQuery) -> Result<LogRange, Problem> {
    let failed = |error: io::Error| Problem::new(Kind::Internal, error_chain(&error));
    let mut left = query.limit.unwrap_or(USUAL);
    let mut range = LogRange { next_offset: source.reader.offset(), ..LogRange::default() };
    while left > 0 {
        let Some((entry, next)) = log_stream::next_entry(&mut source.reader).map_err(failed)? else {
            range.complete = source.end.seen.is_some();
            if range.complete || !source.end.has_come() {
                break;
            }
            // Output may have come before the end: read again.
            continue;
        };
        range.next_offset = next;
        match entry {
            LogEntry::Data { stream, time, offset, bytes } if query.has(stream) => {
                let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let bytes = bytes.get(..wanted).unwrap_or_default();
                left -= entry_length(bytes);
                range.next_offset = offset + entry_length(bytes);
                range.frames.push(LogFrame::new(stream, time, offset, bytes));
            }
            LogEntry::Data { .. } => {}
            LogEntry::Missed { bytes } => range.missed_bytes += bytes,
            LogEntry::Lost { bytes, .. } => range.lost_bytes += bytes,
            LogEntry::Damaged { bytes, .. } => range.damaged_bytes += bytes,
        }
    }
    Ok(range)
}

impl LogFrame {
    fn new(stream: Stream, time_ns: u64, offset: u64, bytes: &[u8]) -> LogFrame {
        let text = std::str::from_utf8(bytes).ok().map(str::to_owned);
        let base64 = text.is_none().then(|| STANDARD.encode(bytes));
        LogFrame { offset, stream: stream.into(), time_ns, text, base64 }
    }
}

/// Writes an entry as an event, if it is wanted.
pub(super) fn send_entry(
    out: &mut impl io::Write,
    query: &LogQuery,
    (entry, next): (LogEntry<'_>, u64),
) -> io::Result<()> {
    let mut gap = |name, bytes| sse::send_event(out, name, Some(&next), &json!({ "bytes": bytes }));
    match entry {
        LogEntry::Data { stream, time, offset, bytes } if query.has(stream) => {
            let name = match stream {
                Stream::Stdout => "stdout",
                Stream::Stderr => "stderr",
            };
            sse::send_event(out, name, Some(&next), &LogFrame::new(stream, time, offset, bytes))
        }
        LogEntry::Data { .. } => Ok(()),
        LogEntry::Missed { bytes } => gap("lagged", bytes),
        LogEntry::Lost { bytes, .. } => gap("lost", bytes),
        LogEntry::Damaged { bytes, .. } => gap("damaged", bytes),
    }
}

/// Writes a log as events to its only reader, until the end.
///
/// Returns the log: the kernel takes milliseconds to close its watch, and the body ends before.
pub(super) fn log_events(
    app: &AppState,
    sink: &mut Sink,
    source: LogSource,
    query: &LogQuery,
) -> io::Result<LogReader> {
    let LogSource { mut reader, mut end } = source;
    let each = |sink: &mut Sink, piece: Piece<'_>| match piece {
        Piece::Silence => sse::send_beat(sink),
        Piece::Entry(entry, next) => send_entry(sink, query, (entry, next)),
    };
    match log_stream::follow_log(sink, &mut reader, &app.drain, Some(SILENCE), (|| end.has_come(), each))? {
        StreamEnd::Complete => sse::send_event(sink, "end", Some(&reader.offset()), &end.seen)?,
        StreamEnd::Draining => sse::send_event(sink, "error", None, &Problem::draining().document())?,
    }
    Ok(reader)
}

/// Writes the raw bytes that there are.
fn raw(sink: &mut Sink, mut reader: LogReader, query: &LogQuery) -> io::Result<()> {
    while let Some((entry, _)) = log_stream::next_entry(&mut reader)? {
        if let LogEntry::Data { stream, bytes, .. } = entry
            && query.has(stream)
        {
            sink.write(bytes)?;
        }
    }
    Ok(())
}

/// The log that the followers of a stream share.
pub(super) struct LogFeed {
    source: LogSource,
    /// The time until the next look without a sign.
    pause: Option<Duration>,
}

/// The logs that are followed, by device and inode.
pub(super) type LogFeeds = SharedStreams<(u64, u64), LogFeed>;

impl Source for LogFeed {
    type Place = LogPlace;
    type Form = LogQuery;

    fn begin_look(&mut self) -> bool {
        self.source.reader.begin_look();
        // Before the reads: output that was written before the end is not missed.
        self.source.end.has_come()
    }

    fn read(&mut self, place: &mut LogPlace, query: &LogQuery, part: &mut Vec<u8>) -> io::Result<bool> {
        let reader = &mut self.source.reader;
        reader.go_to_place(*place);
        let begin = reader.offset();
        while part.len() < PART && reader.offset().saturating_sub(begin) < READ {
            let Some((entry, next)) = log_stream::next_entry(reader)? else {
                *place = reader.place();
                return Ok(false);
            };
            match (query.format, entry) {
                (LogFormat::Json, entry) => send_entry(part, query, (entry, next))?,
                (LogFormat::Raw, LogEntry::Data { stream, bytes, .. }) if query.has(stream) => {
                    part.extend_from_slice(bytes);
                }
                // A gap would look like a whole output.
                (LogFormat::Raw, LogEntry::Missed { .. } | LogEntry::Damaged { .. }) => {
                    return Err(io::Error::other("output is missing"));
                }
                (LogFormat::Raw, _) => {}
            }
        }
        *place = reader.place();
        Ok(true)
    }

    fn last(&mut self, place: &LogPlace, query: &LogQuery, end: StreamEnd) -> io::Result<Vec<u8>> {
        let mut part = Vec::new();
        match (query.format, end) {
            (LogFormat::Json, StreamEnd::Complete) => {
                self.source.reader.go_to_place(*place);
                let offset = self.source.reader.offset();
                sse::send_event(&mut part, "end", Some(&offset), &self.source.end.seen)?;
            }
            (LogFormat::Json, StreamEnd::Draining) => {
                sse::send_event(&mut part, "error", None, &Problem::draining().document())?;
            }
            (LogFormat::Raw, StreamEnd::Complete) => {}
            (LogFormat::Raw, StreamEnd::Draining) => return Err(io::Error::other("the server ends")),
        }
        Ok(part)
    }

    fn ends_here(_: &LogQuery) -> bool {
        false
    }

    fn beat(query: &LogQuery) -> &'static [u8] {
        if query.format == LogFormat::Raw { b"" } else { sse::BEAT }
    }

    fn wait(&mut self, wake: BorrowedFd<'_>, longest: Duration) -> io::Result<()> {
        self.source.reader.await_change(wake, longest, &mut self.pause).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_was_seen_stays() {
        let mut observations = [None, Some(json!({ "exit": { "code": 7 } })), None, None].into_iter();
        let mut end = LogEnd::new(move || observations.next().flatten());
        assert!(!end.has_come());
        assert_eq!(end.seen, None);
        for _ in 0..3 {
            assert!(end.has_come());
            assert_eq!(end.seen, Some(json!({ "exit": { "code": 7 } })));
        }
    }
}
