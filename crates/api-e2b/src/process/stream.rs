//! The events of a command, as a stream: its start, its output, its end. The command goes on without the stream.

use std::io;
use std::time::Duration;

use axum::response::Response;
use penfold_control::execs::{self, ExecStatus, ExecView};
use penfold_server::log_stream::{self, Piece, StreamEnd};
use penfold_server::sent_body::{self, Sink};
use penfold_server::survivors::survivors_sentence;
use penfold_state::log::{LogEntry, LogReader, Stream};
use penfold_state::state::CommandExit;
use penfold_state::time::now_ms;
use penfold_state::{ExitStatus, Files, error_chain};
use penfold_teardown::Cause;
use tokio::sync::OwnedSemaphorePermit;

use super::messages::{Bytes, End, Event, EventMessage, Output};
use crate::api::ApiState;
use crate::connect::{Code, RpcError, frame, last_frame, stream};
use crate::sandbox::is_ending;

/// The milliseconds after which the end of a sandbox that has killed its commands is known.
const CLEAR_MS: u64 = 250;

/// How a stream begins.
#[derive(Debug)]
pub(super) struct Beginning {
    pub(super) pid: u32,
    /// The command; `None` if it could not be executed.
    pub(super) followed: Option<Followed>,
    /// The code and the reason of a command that could not be executed.
    pub(super) failure: Option<(i32, String)>,
}

impl Beginning {
    /// The beginning of a command that could not be executed.
    pub(super) fn failed(code: i32, reason: &str) -> Beginning {
        Beginning { pid: 0, followed: None, failure: Some((code, format!("{reason}\n"))) }
    }
}

/// A command that is followed.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) number: u32,
    pub(super) log: LogReader,
    pub(super) is_terminal: bool,
}

/// Answers with the events of a command until its end is known.
///
/// # Errors
/// When there is no thread or no descriptor for it.
pub(super) fn follow(
    api: ApiState,
    files: Files,
    beginning: Beginning,
    keepalive: Duration,
    place: OwnedSemaphorePermit,
) -> io::Result<Response> {
    let (body, _) = sent_body::woken_body(move |sink| {
        let _place = place;
        write(&api, &files, beginning, keepalive, sink)
    })?;
    Ok(stream(body))
}

/// Returns the log: the kernel takes milliseconds to close its watch, and the body ends before.
fn write(
    api: &ApiState,
    files: &Files,
    beginning: Beginning,
    keepalive: Duration,
    sink: &mut Sink,
) -> io::Result<Option<LogReader>> {
    let Beginning { pid, followed, failure } = beginning;
    send(sink, Event::Start { pid })?;
    if let Some((code, reason)) = failure {
        send(sink, Event::Data(Output::Stderr(Bytes(reason.into_bytes()))))?;
        send(sink, Event::End(End::of_code(code)))?;
    }
    let Some(Followed { number, mut log, is_terminal }) = followed else {
        sink.write(last_frame(None))?;
        return Ok(None);
    };
    let mut ending = None;
    let has_ended = || {
        ending = Ending::look(files, number);
        ending.is_some()
    };
    let each = |sink: &mut Sink, piece: Piece<'_>| match piece {
        Piece::Entry(LogEntry::Data { stream, bytes, .. }, _) => {
            let bytes = Bytes(bytes.to_vec());
            send(
                sink,
                Event::Data(match stream {
                    _ if is_terminal => Output::Pty(bytes),
                    Stream::Stdout => Output::Stdout(bytes),
                    Stream::Stderr => Output::Stderr(bytes),
                }),
            )
        }
        Piece::Entry(..) => Ok(()),
        Piece::Silence => send(sink, Event::Keepalive {}),
    };
    let end = log_stream::follow_log(sink, &mut log, &api.app.drain, Some(keepalive), (has_ended, each));
    let end = end.inspect_err(|error| {
        if error.kind() != io::ErrorKind::BrokenPipe {
            tracing::warn!(
                sandbox = files.name(),
                error = error_chain(error),
                "a stream of a command broke off"
            );
        }
    })?;
    let last = match (end, ending) {
        (StreamEnd::Complete, Some(Ending::Known(end))) => {
            send(sink, Event::End(end))?;
            last_frame(None)
        }
        (StreamEnd::Complete, Some(Ending::Failed(error))) => last_frame(Some(&error)),
        // The stream breaks off: then every client looks whether the sandbox is there.
        (StreamEnd::Complete, Some(Ending::SandboxGone) | None) => {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        (StreamEnd::Draining, _) => {
            let why = "the server is ending; the command goes on: connect again";
            last_frame(Some(&RpcError::new(Code::Unavailable, why)))
        }
    };
    sink.write(last)?;
    Ok(Some(log))
}

fn send(sink: &mut Sink, event: Event) -> io::Result<()> {
    sink.write(frame(&EventMessage { event })?)?;
    // A client reads each event as it comes.
    sink.flush()
}

/// How the following of a command ends.
enum Ending {
    Known(End),
    Failed(RpcError),
    SandboxGone,
}

impl Ending {
    /// Looks whether the end of a command is known. One that has ended by itself has: what it has left goes on. One that was ended has
    /// once everything was observed gone.
    fn look(files: &Files, number: u32) -> Option<Ending> {
        if let Ok(Some(CommandExit { exit: Some(exit), cause: Cause::Exit, .. })) =
            execs::exec_exit(files, number)
        {
            return Some(Ending::Known(End::of(exit)));
        }
        let Ok(view) = execs::find_exec(files, number) else { return None };
        let Some(view) = view else { return Some(Ending::SandboxGone) };
        // Without a cgroup, what a killed supervisor of an exec leaves ends with the sandbox.
        if !view.remaining.is_empty() && !is_ending(files) {
            let message =
                format!("the command was ended, and is not gone: {}", survivors_sentence(&view.remaining));
            return Some(Ending::Failed(RpcError::internal(&io::Error::other(message))));
        }
        let is_over = view.status == ExecStatus::Ended;
        match (view.cause, view.exit) {
            // It has ended since the look above.
            (Some(Cause::Exit), Some(exit)) => Some(Ending::Known(End::of(exit))),
            (Some(Cause::Timeout), _) if is_over => {
                let message = "the command reached its time limit; all that it had started was observed gone";
                Some(Ending::Failed(RpcError::new(Code::DeadlineExceeded, message)))
            }
            // Its own signal, or that of a client: what it has left goes on. The end of the sandbox begins with these two signals, too.
            (Some(Cause::Signal), Some(exit)) if !is_ending(files) => {
                let is_clear = !matches!(exit, ExitStatus::Signal(9 | 15)) || is_past(&view);
                is_clear.then(|| Ending::Known(End::of(exit)))
            }
            (Some(Cause::Kill), Some(exit)) if is_over && !is_ending(files) => {
                Some(Ending::Known(End::of(exit)))
            }
            _ if is_over => Some(Ending::SandboxGone),
            _ => None,
        }
    }
}

/// Tells whether a command ended so long ago that the end of its sandbox would be known, if that had ended it.
fn is_past(view: &ExecView) -> bool {
    view.ended_at_ms.is_some_and(|at| now_ms().saturating_sub(at) > CLEAR_MS)
}

impl End {
    fn of(exit: ExitStatus) -> End {
        match exit {
            ExitStatus::Code(code) => End::of_code(code),
            ExitStatus::Signal(signal) => {
                let status = format!("signal: {}", words_of_signal(signal));
                End { exit_code: -1, exited: false, error: Some(status.clone()), status }
            }
        }
    }

    fn of_code(code: i32) -> End {
        let status = format!("exit status {code}");
        End { exit_code: code, exited: true, error: (code != 0).then(|| status.clone()), status }
    }
}

/// A signal as the reference calls it.
fn words_of_signal(signal: i32) -> String {
    let known = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        6 => "aborted",
        8 => "floating point exception",
        9 => "killed",
        11 => "segmentation fault",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        _ => return format!("signal {signal}"),
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_said_as_the_reference_says_them() {
        assert_eq!(
            End::of(ExitStatus::Code(0)),
            End { exit_code: 0, exited: true, status: "exit status 0".to_owned(), error: None }
        );
        let three = End::of(ExitStatus::Code(3));
        assert_eq!((three.exit_code, three.error.as_deref()), (3, Some("exit status 3")));
        let killed = End::of(ExitStatus::Signal(9));
        assert_eq!((killed.exit_code, killed.exited, killed.status.as_str()), (-1, false, "signal: killed"));
        assert_eq!(End::of(ExitStatus::Signal(40)).status, "signal: signal 40");
    }
}
