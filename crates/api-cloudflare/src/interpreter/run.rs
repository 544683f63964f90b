//! Runs code in a context, and answers with its output, its results and its end.

use std::cell::Cell;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::response::Response;
use penfold_control::execs;
use penfold_server::Drain;
use penfold_server::execs::{Follower, ObservedEnd};
use penfold_server::log_stream::{self, StreamEnd};
use penfold_server::sent_body::{self, Sink};
use penfold_state::error_chain;
use penfold_state::log::{LogEntry, LogPosition, LogReader, Stream};
use penfold_teardown::Cause;
use rustix::event::Timespec;
use serde_json::{Value, json};

use crate::api::ApiState;
use crate::error::{ApiError, Code};
use crate::json_body::Utf8;
use crate::sessions::find;
use crate::{processes, sse};

use super::contexts::Context;
use super::frames::{Marks, Piece, ascii_json, new_token, request_lines};
use super::input::send_request;
use super::language::Language;

/// The time for the last event of a stream that breaks off.
const FLUSH: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// The time in which a sandbox that is ended by others ends after a context of it.
const MOMENT: Duration = Duration::from_millis(100);
/// The time after its limit in which an interpreter has ended code, or itself; one that is stopped does neither.
const LATE: Duration = Duration::from_secs(4);
/// The first time between two requests to write the marks again, and the longest one.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Code to be run.
#[derive(Debug)]
pub(super) struct CodeToRun {
    pub(super) text: String,
    pub(super) language: Language,
    pub(super) limit_ms: Option<u64>,
}

/// Runs code, and answers with a stream that ends with the run. The run goes on if the client leaves.
///
/// # Errors
/// When the interpreter has ended, or there are as many streams as there can be.
pub(super) async fn answer_with_run(
    api: &ApiState,
    context: Context,
    code: CodeToRun,
) -> Result<Response, ApiError> {
    if !context.exec.is_running() {
        let message = "Context executor has terminated. Please delete and recreate the context.";
        return Err(ApiError::new(Code::InternalError, message).with("contextId", context.id.as_str()));
    }
    // Held by the stream, and as long as the request is on its way.
    let place = Arc::new(api.app.engine.follower().ok_or_else(ApiError::too_many_streams)?);
    let log = {
        let context = context.clone();
        api.call(move |_| open_end(&context)).await?
    };
    let token = new_token();
    let unsent = Arc::new(OnceLock::new());
    let run = Run {
        context: context.clone(),
        limit: code.limit_ms.map(Duration::from_millis),
        outputs: [Output::new("stdout", &token), Output::new("stderr", &token)],
        begun: None,
        last: None,
        token: token.clone(),
        next_ask: None,
        is_killed: false,
        unsent: Arc::clone(&unsent),
    };
    let held = Arc::clone(&place);
    let theirs = ApiState::clone(api);
    let made = sent_body::followed_body(move |sink| {
        let _held = held;
        let _in_use = theirs.leases.begin_use(&run.context.exec.files);
        run.write(sink, log, &theirs.app.drain)
    });
    let (body, wake, open) = made.map_err(|error| ApiError::full(&error))?;
    let followed = (context.exec.files.name().to_owned(), context.number());
    api.followers.add(followed, Follower { wake, open });
    let request = json!({ "code": code.text, "language": code.language.name(), "limit": code.limit_ms });
    let api = ApiState::clone(api);
    tokio::spawn(async move {
        if let Err(error) = send_request(&api, &context, &token, &request).await {
            // Nobody else sets it.
            let _ = unsent.set(error_chain(&error));
        }
        drop(place);
    });
    Ok(sse::event_stream(body))
}

/// Opens the log of a context behind its last entry: what comes before is of other runs.
fn open_end(context: &Context) -> Result<LogReader, ApiError> {
    let open = |from| {
        let opened = execs::open_exec_log(&context.exec.files, context.number(), from);
        opened.map_err(|error| ApiError::internal(&error))
    };
    let end = open(LogPosition::Start)?.end();
    open(LogPosition::Offset(end))
}

/// One stream of the interpreter.
#[derive(Debug)]
struct Output {
    kind: &'static str,
    marks: Marks,
    decoder: Utf8,
}

impl Output {
    fn new(kind: &'static str, token: &str) -> Output {
        Output { kind, marks: Marks::new(token), decoder: Utf8::default() }
    }

    /// Sends what the next bytes have of the run. Its last event is put into `last`: the other stream may not have ended yet.
    fn take(&mut self, sink: &mut Sink, bytes: &[u8], last: &mut Option<Value>) -> io::Result<()> {
        for piece in self.marks.take(bytes) {
            let mut text = String::new();
            match piece {
                Piece::Output(bytes) => self.decoder.decode(&bytes, &mut text),
                Piece::End => self.decoder.end(&mut text),
                Piece::Event(event) => match event["type"].as_str() {
                    Some("result") => send(sink, &event)?,
                    Some("error" | "execution_complete") => *last = Some(event),
                    _ => {}
                },
            }
            if !text.is_empty() {
                send(sink, &json!({ "type": self.kind, "text": text }))?;
            }
        }
        Ok(())
    }
}

/// A run that is followed.
#[derive(Debug)]
struct Run {
    context: Context,
    limit: Option<Duration>,
    outputs: [Output; 2],
    /// When the first output or mark of the run came.
    begun: Option<Instant>,
    /// How the run ended.
    last: Option<Value>,
    token: String,
    /// After a loss of output: when the interpreter is asked for its marks again, and the pause after that.
    next_ask: Option<(Instant, Duration)>,
    /// Whether its context was killed because the interpreter did not keep the limit itself.
    is_killed: bool,
    /// Why the request did not reach the interpreter.
    unsent: Arc<OnceLock<String>>,
}

impl Run {
    /// Writes the stream. The returned reader is to be dropped late, as that of a process.
    fn write(mut self, sink: &mut Sink, mut log: LogReader, drain: &Drain) -> io::Result<LogReader> {
        let (files, number) = (self.context.exec.files.clone(), self.context.number());
        let unsent = Arc::clone(&self.unsent);
        let is_over = Cell::new(false);
        let mut end = None;
        let has_ended = || {
            end = end.or_else(|| ObservedEnd::of(&files, number));
            is_over.get() || end.is_some() || unsent.get().is_some()
        };
        let each = |sink: &mut Sink, piece: log_stream::Piece<'_>| {
            self.take(sink, &piece)?;
            is_over.set(self.is_over());
            // What comes after the run may have no end.
            if is_over.get() { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
        };
        let followed = log_stream::follow_log(sink, &mut log, drain, Some(PAUSE), (has_ended, each));
        if is_over.get() {
            let last = self.last.take();
            let unknown = || error_event("OutputLost", "the code has ended, and how it ended was lost");
            send(sink, &last.unwrap_or_else(unknown))?;
            return Ok(log);
        }
        if followed? == StreamEnd::Draining {
            let error = error_event("ServerEnding", "the server is ending; the code goes on");
            send(sink, &error)?;
            // A reset would overtake the event.
            let _ = rustix::event::poll(&mut [], Some(&FLUSH));
            return Err(io::ErrorKind::Interrupted.into());
        }
        send(sink, &self.broken_off(end))?;
        Ok(log)
    }

    fn is_over(&self) -> bool {
        self.outputs.iter().all(|output| output.marks.is_over())
    }

    fn take(&mut self, sink: &mut Sink, piece: &log_stream::Piece<'_>) -> io::Result<()> {
        let [stdout, stderr] = &mut self.outputs;
        match piece {
            log_stream::Piece::Entry(LogEntry::Data { stream, bytes, .. }, _) => {
                let output = if *stream == Stream::Stdout { stdout } else { stderr };
                output.take(sink, bytes, &mut self.last)?;
                if self.begun.is_none() && output.marks.has_begun() {
                    self.begun = Some(Instant::now());
                }
                Ok(())
            }
            log_stream::Piece::Entry(
                LogEntry::Lost { bytes, .. } | LogEntry::Missed { bytes } | LogEntry::Damaged { bytes, .. },
                _,
            ) => {
                stdout.marks.skip();
                stderr.marks.skip();
                self.next_ask.get_or_insert((Instant::now(), PAUSE));
                self.ask_again();
                send(sink, &json!({ "type": "lagged", "bytes": bytes }))
            }
            log_stream::Piece::Silence => {
                self.ask_again();
                self.end_late();
                Ok(())
            }
        }
    }

    /// Tells whether the interpreter ended without a request of a client. It may be killed before the rest of a sandbox that is ended.
    fn is_by_itself(&self, end: ObservedEnd) -> bool {
        match end.cause {
            Some(Cause::Signal) => !find::ends_within(&self.context.exec.files, MOMENT),
            Some(Cause::Exit | Cause::Memory | Cause::Oom) => true,
            _ => false,
        }
    }

    /// After a loss, has the interpreter write the marks of the run again once the run has ended: they may be what was lost.
    fn ask_again(&mut self) {
        let Some((_, pause)) = self.next_ask.filter(|&(due, _)| Instant::now() >= due) else { return };
        self.next_ask = Some((Instant::now() + pause, LONGEST_PAUSE.min(pause * 2)));
        let input = execs::open_exec_input(&self.context.exec.files, self.context.number());
        // If it has no room, the next time is soon enough.
        if let (Ok(Some(input)), [line]) = (input, request_lines(&self.token, &json!({})).as_slice()) {
            let _ = rustix::io::write(input, line.as_bytes());
        }
    }

    /// Kills the context of code that goes on long after its time limit.
    fn end_late(&mut self) {
        let late = self.limit.zip(self.begun).is_some_and(|(limit, begun)| begun.elapsed() > limit + LATE);
        if late && !self.is_killed {
            let killed = execs::begin_kill(&self.context.exec.files, self.context.number());
            self.is_killed = killed.is_ok();
        }
    }

    /// The last event of a run whose end did not come.
    fn broken_off(&self, end: Option<ObservedEnd>) -> Value {
        let limit = self.limit.filter(|&limit| self.begun.is_some_and(|begun| begun.elapsed() >= limit));
        match (end, limit) {
            (None, _) => {
                let why = self.unsent.get().map_or("its interpreter does not answer", String::as_str);
                error_event("InterpreterEnded", &format!("the code was not run: {why}"))
            }
            (Some(end), _) if !self.is_killed && !self.is_by_itself(end) => {
                error_event("InterpreterEnded", "the context was ended while its code ran")
            }
            (Some(_), Some(limit)) => {
                let ms = limit.as_millis();
                let why = format!(
                    "the code ran longer than {ms} ms and could not be interrupted, so its context was ended"
                );
                error_event("TimeoutError", &why)
            }
            (Some(end), None) => {
                let code = processes::code_of(end.exit);
                let why = format!(
                    "the interpreter of the context has ended (exit code {code}); delete the context and create another one"
                );
                error_event("InterpreterEnded", &why)
            }
        }
    }
}

fn error_event(name: &str, message: &str) -> Value {
    json!({ "type": "error", "ename": name, "evalue": message, "traceback": [] })
}

/// Sends an event. Clients take its time for a number, so it has none, and they divide characters that are not ASCII.
fn send(sink: &mut Sink, event: &Value) -> io::Result<()> {
    sink.write(format!("data: {}\n\n", ascii_json(event)))?;
    sink.flush()
}
