//! `/ws/pty`: the terminal of a session. It is a recorded exec in the session's sandbox, so it outlives its clients and the server.
//!
//! A client gets the last output, the message `ready`, and then what the terminal shows. Any number of clients share one terminal.

use std::io;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse as _;
use axum::routing::get;
use http_body_util::BodyExt as _;
use penfold_control::execs::{self, ExecStart};
use penfold_server::execs::{ObservedEnd, write_input};
use penfold_server::log_stream::{self, Piece};
use penfold_server::sent_body;
use penfold_server::sockets::{Closed, Message, NoUpgrade, Socket, SocketReceiver, SocketSender, Upgrade};
use penfold_state::error_chain;
use penfold_state::log::{LogEntry, LogPosition, LogReader};
use penfold_state::wire::Size;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use crate::answer::RouteResult;
use crate::api::{Api, ApiState};
use crate::error::{ApiError, Code};
use crate::ids::{SessionId, query_value};
use crate::processes;
use crate::sessions::{self, Session};
use crate::ws;

/// The path of the terminal.
pub(crate) const PATH: &str = "/ws/pty";
/// The label of the exec that is the session's terminal.
const LABEL: &str = "pty";
/// The output that a client gets first, as in the reference.
const REPLAYED: u64 = 256 << 10;
/// The output that is kept.
const KEPT: u64 = 4 << 20;
/// The largest message of a client.
const LARGEST: usize = 1 << 20;
const USUAL_SIZE: Size = Size { rows: 24, columns: 80 };

/// The route for terminals.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new().route("/ws/pty", get(open))
}

/// A text message of a client.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Control {
    Resize {
        cols: i64,
        rows: i64,
    },
    #[serde(other)]
    Unknown,
}

async fn open(State(api): State<ApiState>, uri: Uri, upgrade: Result<Upgrade, NoUpgrade>) -> RouteResult {
    let upgrade = upgrade.map_err(ws::no_upgrade)?;
    let query = |name| query_value(uri.query().unwrap_or_default(), name);
    let Some(id) = query("sessionId") else {
        return Ok((StatusCode::BAD_REQUEST, "sessionId query parameter required").into_response());
    };
    let id = SessionId::new(Some(&id))?;
    let characters = |name, usual| {
        query(name).and_then(|text| text.parse().ok()).filter(|&side| side > 0).unwrap_or(usual)
    };
    let size =
        Size { rows: characters("rows", USUAL_SIZE.rows), columns: characters("cols", USUAL_SIZE.columns) };
    let shell = query("shell").unwrap_or_else(|| "bash".to_owned());
    let place = api.app.engine.follower().ok_or_else(ApiError::too_many_streams)?;
    let session = sessions::obtain(&api, &id).await?;
    let number = {
        // Two clients at one time get one terminal.
        let _turn = api.locks.lock(&format!("{}\npty", id.as_str())).await;
        let session = session.clone();
        api.call(move |api| find_or_start(api, &session, &shell, size)).await?
    };
    let seen = {
        let session = session.clone();
        api.call(move |_| read_last(&session, number)).await?
    };
    let terminal = Terminal { api: ApiState::clone(&api), session, number };
    Ok(upgrade.accept(&api.app, LARGEST, move |socket| terminal.serve(socket, place, seen)))
}

/// Returns the number of the session's terminal, and starts one if there is none.
fn find_or_start(api: &Api, session: &Session, shell: &str, size: Size) -> Result<u32, ApiError> {
    let failed = |error: &dyn std::error::Error| {
        if session.has_ended() { session.destroyed() } else { ApiError::internal(error) }
    };
    let running = execs::running_execs(&session.files).map_err(|error| failed(&error))?;
    if let Some(terminal) = running.iter().find(|exec| exec.labels.contains_key(LABEL)) {
        return Ok(terminal.number);
    }
    processes::make_room(api, &session.files);
    let mut start = ExecStart::new([shell]);
    start.environment = vec![("TERM".into(), Some("xterm-256color".into()))];
    start.terminal = Some(size);
    start.open_input = true;
    start.log_limit = KEPT;
    start.labels = [(LABEL.to_owned(), String::new())].into();
    let started = execs::start_exec(&session.files, start);
    penfold_sys::crash_point!("serve-terminal-started");
    started.map(|started| started.number).map_err(|error| match &error {
        execs::ExecError::StartFailed { .. } if !session.has_ended() => {
            ApiError::new(Code::InvalidCommand, format!("cannot run the shell `{shell}`"))
        }
        error => failed(error),
    })
}

/// Reads the last output, and leaves the reader behind it.
fn read_last(session: &Session, number: u32) -> Result<(Vec<u8>, LogReader), ApiError> {
    let open =
        |from| execs::open_exec_log(&session.files, number, from).map_err(|error| ApiError::internal(&error));
    let end = open(LogPosition::Start)?.end();
    let mut reader = open(LogPosition::Offset(end.saturating_sub(REPLAYED)))?;
    let mut last = Vec::new();
    // No more than that: a program may write faster than this reads.
    while reader.offset() < end {
        match reader.next_entry().map_err(|error| ApiError::internal(&error))? {
            Some(LogEntry::Data { bytes, .. }) => last.extend_from_slice(bytes),
            Some(_) => {}
            None => break,
        }
    }
    Ok((last, reader))
}

/// The terminal of a session, for one client.
struct Terminal {
    api: ApiState,
    session: Session,
    number: u32,
}

impl Terminal {
    /// Serves the socket until the shell has ended or the client leaves. The terminal stays.
    async fn serve(self, socket: Socket, place: OwnedSemaphorePermit, (last, reader): (Vec<u8>, LogReader)) {
        let (mut receiver, sender) = socket.split();
        tokio::select! {
            shown = self.show(&sender, place, last, reader) => {
                if let Err(why) = shown {
                    let _ = status(&sender, &json!({ "type": "error", "message": why })).await;
                }
            }
            () = self.hear(&mut receiver, &sender) => {}
        }
    }

    /// Sends the last output, and then what comes, to the end.
    ///
    /// # Errors
    /// The reason why no more comes, as a sentence.
    async fn show(
        &self,
        sender: &SocketSender,
        place: OwnedSemaphorePermit,
        last: Vec<u8>,
        reader: LogReader,
    ) -> Result<(), String> {
        let gone = |error: Closed| error.to_string();
        if !last.is_empty() {
            sender.send(Message::Binary(last.into())).await.map_err(gone)?;
        }
        status(sender, &json!({ "type": "ready" })).await.map_err(gone)?;
        let mut output = self.follow(place, reader).map_err(|error| error_chain(&error))?;
        while let Some(frame) = output.frame().await {
            let frame = frame.map_err(|_| "the server is ending; the terminal goes on".to_owned())?;
            if let Ok(bytes) = frame.into_data() {
                sender.send(Message::Binary(bytes)).await.map_err(gone)?;
            }
        }
        let (files, number) = (self.session.files.clone(), self.number);
        let end = self.api.app.engine.call(move |_| ObservedEnd::of(&files, number)).await.ok().flatten();
        let code = end.map(|end| processes::code_of(end.exit));
        status(sender, &json!({ "type": "exit", "code": code })).await.map_err(gone)
    }

    /// Returns the output that comes, as a body that ends with the terminal.
    fn follow(&self, place: OwnedSemaphorePermit, mut reader: LogReader) -> io::Result<Body> {
        let (files, number) = (self.session.files.clone(), self.number);
        let api = ApiState::clone(&self.api);
        let (body, _) = sent_body::woken_body(move |sink| {
            let _place = place;
            let has_ended = || ObservedEnd::of(&files, number).is_some();
            let each = |sink: &mut sent_body::Sink, piece: Piece<'_>| match piece {
                Piece::Entry(LogEntry::Data { bytes, .. }, _) => sink.write(bytes),
                Piece::Entry(..) | Piece::Silence => Ok(()),
            };
            match log_stream::follow_log(sink, &mut reader, &api.app.drain, None, (has_ended, each))? {
                log_stream::StreamEnd::Complete => Ok(()),
                log_stream::StreamEnd::Draining => Err(io::ErrorKind::Interrupted.into()),
            }
        })?;
        Ok(body)
    }

    /// Types what the client sends, until it leaves.
    async fn hear(&self, receiver: &mut SocketReceiver, sender: &SocketSender) {
        while let Some(message) = receiver.receive().await {
            let done = match message {
                Message::Binary(bytes) => {
                    tokio::select! {
                        written = self.write(bytes) => written,
                        () = sender.gone() => return,
                    }
                }
                Message::Text(text) => self.control(&text).await,
            };
            if let Err(why) = done
                && status(sender, &json!({ "type": "error", "message": why })).await.is_err()
            {
                return;
            }
        }
    }

    async fn write(&self, typed: Bytes) -> Result<(), String> {
        let written = write_input(&self.api.app.engine, &self.session.files, self.number, &typed).await;
        written.map_err(|error| error.to_string())
    }

    async fn control(&self, text: &str) -> Result<(), String> {
        let Ok(control) = serde_json::from_str(text) else {
            return Err("Invalid control message".to_owned());
        };
        let Control::Resize { cols, rows } = control else { return Ok(()) };
        let side = |side: i64| u16::try_from(side).ok().filter(|&side| side > 0);
        let (Some(rows), Some(columns)) = (side(rows), side(cols)) else {
            return Err("Invalid dimensions: cols and rows must be positive".to_owned());
        };
        let (files, number) = (self.session.files.clone(), self.number);
        let resized = self
            .api
            .app
            .engine
            .call(move |_| execs::resize_exec(&files, number, Size { rows, columns }))
            .await;
        resized.map_err(|error| error.to_string())?.map_err(|error| error_chain(&error))
    }
}

async fn status(sender: &SocketSender, status: &Value) -> Result<(), Closed> {
    sender.send(Message::Text(status.to_string())).await
}
