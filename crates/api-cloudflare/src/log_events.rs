//! The output of an exec and its end, as clients from 0.13 on read them: objects with a cursor each.

use std::io;
use std::os::fd::OwnedFd;

use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use penfold_control::execs;
use penfold_server::execs::{Follower, FoundExec, ObservedEnd};
use penfold_server::log_stream::{self, Piece, StreamEnd};
use penfold_server::sent_body::{self, Sink};
use penfold_state::ExitStatus;
use penfold_state::log::{LogEntry, LogError, LogPosition, LogReader, Stream};
use penfold_teardown::Cause;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::{Api, ApiState};
use crate::error::ApiError;
use crate::{sse, time};

/// Which output a client wants.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct WantedOutput {
    /// The cursor of the last event that the client has.
    since: Option<String>,
    /// Whether output from before comes, too.
    replay: Option<bool>,
    /// Whether later output comes, and the end.
    follow: Option<bool>,
}

impl WantedOutput {
    /// The output after this cursor; without one, all of it.
    pub(crate) fn after(cursor: Option<String>, follows: bool) -> WantedOutput {
        WantedOutput { since: cursor, replay: None, follow: Some(follows) }
    }
}

/// The events of an exec.
#[derive(Debug)]
pub(crate) struct LogEvents {
    exec: FoundExec,
    /// Keeps the record until the stream has its end.
    held: Option<OwnedFd>,
    log: Option<LogReader>,
    is_from_start: bool,
    follows: bool,
    /// The type of an event with output.
    kind: fn(Stream) -> &'static str,
    /// Fields of each event.
    common: Value,
}

/// Why the events of an exec cannot be read.
#[derive(Debug)]
pub(crate) enum NoEvents {
    /// The cursor is none of this exec; this says why.
    Cursor(&'static str),
    /// The record was removed just now.
    Gone,
    Failed(ApiError),
}

impl LogEvents {
    /// Opens the log of an exec.
    ///
    /// # Errors
    /// When the cursor is none, or the exec is gone.
    pub(crate) fn open(
        exec: FoundExec,
        wanted: &WantedOutput,
        kind: fn(Stream) -> &'static str,
        common: Value,
    ) -> Result<LogEvents, NoEvents> {
        let number = exec.view.number;
        let failed = |error: &dyn std::error::Error| NoEvents::Failed(ApiError::internal(error));
        let held = execs::hold_exec_record(&exec.files, number).map_err(|error| failed(&error))?;
        let held = Some(held.ok_or(NoEvents::Gone)?);
        let open = |from| match execs::open_exec_log(&exec.files, number, from) {
            Ok(log) => Ok(Some(log)),
            Err(LogError::Missing) => Ok(None),
            Err(error) => Err(failed(&error)),
        };
        let mut log = open(LogPosition::Start)?;
        let end = log.as_ref().map_or(0, LogReader::end);
        let from = match &wanted.since {
            Some(cursor) => {
                let offset: u64 = cursor.parse().map_err(|_| NoEvents::Cursor("it is no number"))?;
                if offset > end {
                    return Err(NoEvents::Cursor("there is no output so far"));
                }
                Some(offset)
            }
            None if wanted.replay == Some(false) => Some(end),
            None => None,
        };
        if let Some(offset) = from {
            log = open(LogPosition::Offset(offset))?;
        }
        let follows = wanted.follow == Some(true);
        Ok(LogEvents { exec, held, log, is_from_start: from.is_none(), follows, kind, common })
    }

    /// Answers with the events.
    ///
    /// # Errors
    /// When there are as many streams as there can be, or there is no room for a thread.
    pub(crate) fn answer(self, api: &ApiState) -> Result<Response, ApiError> {
        let place = api.app.engine.follower().ok_or_else(ApiError::too_many_streams)?;
        let followed = (self.exec.files.name().to_owned(), self.exec.view.number);
        let theirs = ApiState::clone(api);
        let made = sent_body::followed_body(move |sink| {
            let _place = place;
            let _in_use = theirs.leases.begin_use(&self.exec.files);
            self.write(sink, &theirs)
        });
        let (body, wake, open) = made.map_err(|error| ApiError::full(&error))?;
        api.followers.add(followed, Follower { wake, open });
        Ok(sse::event_stream(body))
    }

    /// Writes the events. The returned reader is to be dropped late, as that of a process.
    fn write(mut self, sink: &mut Sink, api: &Api) -> io::Result<Option<LogReader>> {
        let _held = self.held.take();
        let (files, number) = (self.exec.files.clone(), self.exec.view.number);
        // Output from before an end that was seen is whole.
        let mut end = ObservedEnd::of(&files, number);
        let mut log = self.log.take();
        let mut cursor = 0;
        if let Some(log) = &mut log {
            if self.is_from_start && log.offset() > 0 {
                self.send(sink, "truncated", log.offset(), json!({}))?;
            }
            if self.follows {
                let has_ended = || {
                    end = end.or_else(|| ObservedEnd::of(&files, number));
                    end.is_some()
                };
                let each = |sink: &mut Sink, piece: Piece<'_>| match piece {
                    Piece::Entry(entry, next) => self.entry(sink, &entry, next),
                    Piece::Silence => Ok(()),
                };
                let followed = log_stream::follow_log(sink, log, &api.app.drain, None, (has_ended, each))?;
                if followed == StreamEnd::Draining {
                    return Err(io::Error::other("the server is ending; the process goes on"));
                }
            } else {
                while let Some((entry, next)) = log_stream::next_entry(log)? {
                    self.entry(sink, &entry, next)?;
                }
            }
            cursor = log.offset();
        }
        if let Some(ObservedEnd { exit, cause }) = end {
            self.send(sink, "terminal", cursor, ended_state(exit, cause))?;
        }
        Ok(log)
    }

    fn entry(&self, sink: &mut Sink, entry: &LogEntry<'_>, next: u64) -> io::Result<()> {
        let LogEntry::Data { stream, time, bytes, .. } = entry else {
            return self.send(sink, "truncated", next, json!({}));
        };
        let timestamp = time::iso_time(time / 1_000_000);
        let fields = json!({ "data": STANDARD_NO_PAD.encode(bytes), "timestamp": timestamp });
        self.send(sink, (self.kind)(*stream), next, fields)
    }

    fn send(&self, sink: &mut Sink, kind: &str, cursor: u64, mut fields: Value) -> io::Result<()> {
        if let (Some(fields), Some(common)) = (fields.as_object_mut(), self.common.as_object()) {
            fields.insert("cursor".to_owned(), cursor.to_string().into());
            fields.extend(common.clone());
        }
        sse::send_event(sink, kind, fields)
    }
}

/// Describes the end of an exec. An exit that no process has seen is an error.
pub(crate) fn ended_state(exit: Option<ExitStatus>, cause: Option<Cause>) -> Value {
    let Some(exit) = exit else {
        let message = "the command has ended, and no process has seen how";
        return json!({ "state": "error", "error": { "code": "PROCESS_ERROR", "message": message } });
    };
    let mut told = json!({ "code": exit.shell_code(), "timedOut": cause == Some(Cause::Timeout) });
    if let ExitStatus::Signal(signal) = exit {
        told["signal"] = signal.into();
    }
    json!({ "state": "exited", "exit": told })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told() {
        let exited = |exit: Value| json!({ "state": "exited", "exit": exit });
        for (exit, cause, told) in [
            (ExitStatus::Code(3), Cause::Exit, exited(json!({ "code": 3, "timedOut": false }))),
            (
                ExitStatus::Signal(15),
                Cause::Timeout,
                exited(json!({ "code": 143, "signal": 15, "timedOut": true })),
            ),
        ] {
            assert_eq!(ended_state(Some(exit), Some(cause)), told);
        }
        assert_eq!(ended_state(None, None)["state"], "error");
    }
}
