//! Starts commands, and connects clients to commands that run.

use std::ffi::OsString;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use penfold_control::execs::{self, ExecError, ExecStart, StartedExec};
use penfold_server::execs::{discard_exec, make_room};
use penfold_server::is_settable;
use penfold_state::log::{LogPosition, LogReader};
use penfold_state::{Files, StartFailure};
use rustix::io::Errno;
use rustix::process::Signal;

use super::messages::{ProcessConfig, SelectRequest, StartRequest};
use super::select::{self, CONFIG, TAG, pid_of};
use super::stream::{Beginning, Followed, follow};
use crate::api::{Api, ApiState};
use crate::connect::{Code, RpcError, StreamError, StreamMessage};
use crate::guest::{Guest, Place};
use crate::machine;

/// The header with the time limit in milliseconds.
const TIMEOUT: &str = "connect-timeout-ms";
/// The header with the seconds after which a silent stream says that it lives.
const KEEPALIVE: &str = "keepalive-ping-interval";
/// The same, unless the client says otherwise.
const USUAL_KEEPALIVE: u64 = 90;
/// The most bytes of a command that are kept for lists.
const LONGEST_CONFIG: usize = 64 << 10;
/// The time that the end of a command that could not be started may take.
const DISCARD: Duration = Duration::from_secs(5);

/// `Start`: runs a command, and answers with its events.
pub(super) async fn start(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    headers: HeaderMap,
    StreamMessage(wanted): StreamMessage<StartRequest>,
) -> Result<Response, StreamError> {
    let guest = guest.of_headers(&api.app.engine, &headers).await.map_err(StreamError)?;
    let timeout = number(&headers, TIMEOUT).filter(|&ms| ms > 0).map(Duration::from_millis);
    let place = place(&api)?;
    let files = match &guest.place {
        Place::Sandbox(files) => files.clone(),
        Place::Machine { .. } => machine::sandbox(&api).await.map_err(StreamError)?,
    };
    let own = files.clone();
    let begun = api.call(move |api| {
        let is_terminal = wanted.pty.is_some();
        let mut exec = describe(api, wanted, timeout)?;
        if let Place::Machine { settings, .. } = &guest.place {
            machine::place(&mut exec, settings, &guest.user, &api.app.config.program)?;
        }
        make_room(&own);
        penfold_sys::crash_point!("serve-guest-command-wanted");
        let started = execs::start_exec(&own, exec);
        penfold_sys::crash_point!("serve-guest-command-started");
        begin(&own, started, is_terminal)
    });
    let beginning = begun.await.map_err(StreamError)?;
    answer(&api, files, &headers, place, beginning)
}

/// `Connect`: answers with the events of a command from now on.
pub(super) async fn connect(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    headers: HeaderMap,
    StreamMessage(wanted): StreamMessage<SelectRequest>,
) -> Result<Response, StreamError> {
    let guest = guest.of_headers(&api.app.engine, &headers).await.map_err(StreamError)?;
    let place = place(&api)?;
    let files = guest.record().map_err(StreamError)?.clone();
    let own = files.clone();
    let begun = api.call(move |_| {
        let files = own;
        let view = select::select(&files, &wanted.process, true)?;
        let end = open_log(&files, view.number, LogPosition::Start)?.end();
        let log = open_log(&files, view.number, LogPosition::Offset(end))?;
        let pid = pid_of(&view).unwrap_or(0);
        Ok(Beginning {
            pid,
            followed: Some(Followed { number: view.number, log, is_terminal: view.terminal }),
            failure: None,
        })
    });
    let beginning = begun.await.map_err(StreamError)?;
    answer(&api, files, &headers, place, beginning)
}

fn place(api: &Api) -> Result<tokio::sync::OwnedSemaphorePermit, StreamError> {
    let full =
        || RpcError::new(Code::ResourceExhausted, "this server has as many open streams as it can have");
    api.app.engine.follower().ok_or_else(|| StreamError(full()))
}

fn answer(
    api: &ApiState,
    files: Files,
    headers: &HeaderMap,
    place: tokio::sync::OwnedSemaphorePermit,
    beginning: Beginning,
) -> Result<Response, StreamError> {
    let keepalive = number(headers, KEEPALIVE).filter(|&seconds| seconds > 0).unwrap_or(USUAL_KEEPALIVE);
    let followed = follow(ApiState::clone(api), files, beginning, Duration::from_secs(keepalive), place);
    followed.map_err(|error| StreamError(RpcError::internal(&error)))
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Describes the exec that a client wants.
fn describe(api: &Api, wanted: StartRequest, timeout: Option<Duration>) -> Result<ExecStart, RpcError> {
    let StartRequest { process, pty, tag, stdin } = wanted;
    if process.cmd.is_empty() {
        return Err(RpcError::invalid("`cmd` is empty"));
    }
    if let Some(key) =
        process.envs.iter().find(|(key, value)| !is_settable(key) || value.contains('\0')).map(|(key, _)| key)
    {
        return Err(RpcError::invalid(format!("'{key}' cannot be a variable")));
    }
    let words = || std::iter::once(&process.cmd).chain(&process.args);
    if words().any(|word| word.contains('\0')) {
        return Err(RpcError::invalid("a word of the command has a NUL"));
    }
    let mut start = ExecStart::new(words());
    start.environment =
        process.envs.iter().map(|(key, value)| (OsString::from(key), Some(OsString::from(value)))).collect();
    if pty.is_some() && !process.envs.contains_key("TERM") {
        start.environment.push(("TERM".into(), Some("xterm-256color".into())));
    }
    start.directory = process.cwd.as_ref().filter(|cwd| !cwd.is_empty()).map(Into::into);
    start.open_input = pty.is_some() || stdin.unwrap_or(true);
    start.terminal = pty.as_ref().map(super::messages::Pty::size);
    start.timeout = timeout;
    // At its time limit all of it is killed at once, as the reference kills its first process.
    start.signal = Some(Signal::KILL.as_raw());
    start.grace = Duration::ZERO;
    start.lingers = true;
    start.log_limit = api.app.config.limits.output;
    start.labels.insert(CONFIG.to_owned(), config_label(&process));
    start.labels.extend(tag.map(|tag| (TAG.to_owned(), tag)));
    Ok(start)
}

/// The command for lists; one that is too long is kept without its arguments and variables.
fn config_label(process: &ProcessConfig) -> String {
    let text = serde_json::to_string(process).unwrap_or_default();
    if text.len() <= LONGEST_CONFIG {
        return text;
    }
    let cmd = process.cmd.chars().take(LONGEST_CONFIG / 16).collect();
    serde_json::to_string(&ProcessConfig { cmd, ..ProcessConfig::default() }).unwrap_or_default()
}

fn begin(
    files: &Files,
    started: Result<StartedExec, ExecError>,
    is_terminal: bool,
) -> Result<Beginning, RpcError> {
    let number = match started {
        Ok(started) => started.number,
        Err(ExecError::StartFailed { number, failure }) => {
            discard_exec(files, number, DISCARD);
            return not_started(failure);
        }
        Err(ExecError::Refused(reason)) => return Err(RpcError::new(Code::ResourceExhausted, reason)),
        Err(_) if files.has_ended() => return Err(gone()),
        Err(error) => return Err(RpcError::internal(&error)),
    };
    let view = execs::find_exec(files, number).map_err(|error| RpcError::internal(&error))?;
    let pid = view.as_ref().and_then(pid_of).unwrap_or(0);
    let log = open_log(files, number, LogPosition::Start)?;
    Ok(Beginning { pid, followed: Some(Followed { number, log, is_terminal }), failure: None })
}

fn open_log(files: &Files, number: u32, from: LogPosition) -> Result<LogReader, RpcError> {
    execs::open_exec_log(files, number, from).map_err(|error| RpcError::internal(&error))
}

/// The sandbox ends, or has ended.
fn gone() -> RpcError {
    RpcError::new(Code::Unavailable, "the sandbox ended before the stream was complete")
}

/// A program that is not there ends as in a shell.
fn not_started(failure: StartFailure) -> Result<Beginning, RpcError> {
    let errno = |errno| Errno::from_raw_os_error(errno).to_string();
    match failure {
        StartFailure::NotFound => Ok(Beginning::failed(127, "there is no such program")),
        StartFailure::NotExecutable(error) => Ok(Beginning::failed(126, &errno(error))),
        StartFailure::Directory(error) => {
            Err(RpcError::invalid(format!("cannot enter `cwd`: {}", errno(error))))
        }
        StartFailure::Other(reason) => Err(RpcError::internal(&std::io::Error::other(reason))),
    }
}
