//! `/v1/sandboxes/{id}/attach`: the terminal of a sandbox, over a WebSocket.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::pin;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penfold_control::{ANSWER, SupervisorClient};
use penfold_server::AppState;
use penfold_server::records::find_record;
use penfold_server::sockets::{Closed, Message, NoUpgrade, Socket, SocketReceiver, SocketSender, Upgrade};
use penfold_state::wire::{Answer, ReceiveResult, Request, Size};
use penfold_state::{Files, error_chain};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use utoipa::IntoParams;

use super::attach::{self, ClientMessage};
use super::extract::{Path, Query};
use super::lease::unanswered_problem;
use super::log_answer::{self, LogFeeds, LogQuery};
use super::logs;
use super::model::TerminalSize;
use super::problem::{Kind, Problem};

use crate::routes::{Routes, routes};

/// The size of one read from the terminal.
const READ: usize = 16 << 10;

pub(super) fn routes() -> Routes {
    Routes::new().routes(routes!(attach))
}

/// The size of the client's terminal.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TerminalQuery {
    /// Lines; default: 24.
    rows: Option<u16>,
    /// Columns; default: 80.
    columns: Option<u16>,
    /// Show the log from this offset on: 0, or the `id` of an earlier event. Without it, the programs draw their screen anew.
    offset: Option<u64>,
}

/// Opens a WebSocket to the terminal of a sandbox, which has the size of its smallest client. Messages are as for an exec, without `signal`;
/// what the programs draw anew has no `id`. After the end of the sandbox comes `end`, and after the loss of its supervisor
/// `error`: then the client may attach again. A client that leaves ends nothing.
#[utoipa::path(
    get, path = "/sandboxes/{id}/attach", tag = "sandboxes", operation_id = "attach",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name"), TerminalQuery),
    responses(
        (status = 101, description = "the connection is a WebSocket"),
        Problem,
    )
)]
async fn attach(
    State(app): State<AppState>,
    Path(id): Path<String>,
    Extension(feeds): Extension<LogFeeds>,
    Query(TerminalQuery { rows, columns, offset }): Query<TerminalQuery>,
    upgrade: Result<Upgrade, NoUpgrade>,
) -> Result<Response, Problem> {
    let word = id.clone();
    let files = app.engine.call(move |scope| find_record(scope, &word)).await??;
    let upgrade = upgrade.map_err(|why| Problem::new(Kind::BadRequest, why.to_string()))?;
    let size = Size { rows: rows.unwrap_or(24), columns: columns.unwrap_or(80) };
    let record = files.clone();
    let opened = app.engine.call(move |_| open(&record, size)).await?;
    let log = if offset.is_some() {
        let open = move |scope: &_, from| logs::open(scope, &id, from);
        let query = LogQuery::followed(offset, None);
        Some(
            log_answer::answer((AppState::clone(&app), feeds), query, HeaderMap::new(), open)
                .await?
                .into_body(),
        )
    } else {
        None
    };
    let ((client, stream), log) = match (opened, log) {
        (Ok(opened), log) => (opened, log),
        // Its output stays.
        (Err(problem), Some(log)) if problem.is(Kind::HasEnded) => {
            return Ok(upgrade.accept(&app, attach::LARGEST, async move |socket| {
                let (_receiver, sender) = socket.split();
                let _ = attach::show(log, &sender).await;
            }));
        }
        (Err(problem), _) => return Err(problem),
    };
    let failed = |error: io::Error| Problem::new(Kind::Internal, error_chain(&error));
    stream.set_nonblocking(true).map_err(failed)?;
    let stream = UnixStream::from_std(stream).map_err(failed)?;
    let terminal = Viewer { app: AppState::clone(&app), files, client: Arc::new(client) };
    Ok(upgrade.accept(&app, attach::LARGEST, async move |socket| terminal.serve(socket, stream, log).await))
}

/// Asks the supervisor for a view of the terminal.
fn open(files: &Files, size: Size) -> Result<(SupervisorClient, StdUnixStream), Problem> {
    let client = SupervisorClient::connect(files, ANSWER).map_err(|error| unanswered_problem(&error))?;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (stream, theirs): (OwnedFd, OwnedFd) =
        pair.map_err(|errno| Problem::new(Kind::Internal, error_chain(&io::Error::from(errno))))?;
    match client.request_with(&Request::Attach(size), &[theirs.as_fd()], ANSWER) {
        Ok(Answer::Refused(reason)) => Err(Problem::new(Kind::Refused, reason)),
        Ok(Answer::Outcome(_)) => Err(Problem::new(Kind::HasEnded, "the sandbox has ended")),
        Ok(_) => Ok((client, stream.into())),
        Err(error) => Err(unanswered_problem(&error)),
    }
}

/// A client that is attached to the terminal of a sandbox. The supervisor knows it by its connection.
struct Viewer {
    app: AppState,
    files: Files,
    client: Arc<SupervisorClient>,
}

impl Viewer {
    /// Serves the socket until the sandbox has ended or the client leaves.
    async fn serve(&self, socket: Socket, stream: UnixStream, log: Option<Body>) {
        let (mut receiver, sender) = socket.split();
        let (shown, typed) = stream.into_split();
        let show = async {
            match log {
                Some(log) => self.show_log(log, shown, &sender).await,
                None => self.show_screen(shown, &sender).await,
            }
        };
        tokio::select! {
            _ = show => {}
            () = self.hear(&mut receiver, typed, &sender) => {}
        }
    }

    /// Sends the log to its end.
    async fn show_log(
        &self,
        log: Body,
        mut shown: OwnedReadHalf,
        sender: &SocketSender,
    ) -> Result<(), Closed> {
        let mut log = pin!(attach::show(log, sender));
        let mut rest = vec![0; READ];
        // The terminal waits for a viewer that does not read.
        let drained = async { while matches!(shown.read(&mut rest).await, Ok(1..)) {} };
        tokio::select! {
            done = log.as_mut() => return done,
            () = drained => {}
        }
        if self.has_ended().await { log.await } else { lost(sender).await }
    }

    /// Sends what the terminal shows, and then why no more comes.
    async fn show_screen(&self, mut shown: OwnedReadHalf, sender: &SocketSender) -> Result<(), Closed> {
        let mut buffer = vec![0; READ];
        while let Ok(length @ 1..) = shown.read(&mut buffer).await {
            let bytes = buffer.get(..length).unwrap_or_default();
            let data = match std::str::from_utf8(bytes) {
                Ok(text) => json!({ "stream": "stdout", "text": text }),
                Err(_) => json!({ "stream": "stdout", "base64": STANDARD.encode(bytes) }),
            };
            attach::tell(sender, "stdout", &data).await?;
        }
        if !self.has_ended().await {
            return lost(sender).await;
        }
        let exited = self.files.exited().ok().flatten();
        let (exit, cause) = exited.map_or((None, None), |exited| (exited.exit, Some(exited.cause)));
        attach::tell(sender, "end", &json!({ "exit": exit, "cause": cause })).await
    }

    async fn has_ended(&self) -> bool {
        let files = self.files.clone();
        self.app.engine.call(move |_| penfold_control::has_just_ended(&files)).await.is_ok_and(|ended| ended)
    }

    /// Types what the client sends, until it leaves.
    async fn hear(&self, receiver: &mut SocketReceiver, mut typed: OwnedWriteHalf, sender: &SocketSender) {
        while let Some(message) = receiver.receive().await {
            let done = match message {
                Message::Binary(bytes) => write(&mut typed, &bytes, sender).await,
                Message::Text(text) => match attach::parse(&text) {
                    Ok(ClientMessage::Input(text)) => write(&mut typed, text.as_bytes(), sender).await,
                    Ok(ClientMessage::Resize(TerminalSize { rows, columns })) => {
                        self.resize(Size { rows, columns }).await
                    }
                    Ok(ClientMessage::Signal(_)) => {
                        Err(Problem::field("signal", "not for a terminal: its keys send signals"))
                    }
                    // It has a key for that: only this client types no more.
                    Ok(ClientMessage::EndInput(_)) => {
                        let _ = attach::tell(sender, "input_ended", &json!({})).await;
                        Ok(())
                    }
                    Err(problem) => Err(problem),
                },
            };
            if let Err(problem) = done
                && attach::refuse(sender, problem).await.is_err()
            {
                return;
            }
        }
        // What was typed reaches the programs: the supervisor reads it to the end.
        let _ = typed.shutdown().await;
    }

    async fn resize(&self, size: Size) -> Result<(), Problem> {
        let client = Arc::clone(&self.client);
        let sent = self.app.engine.call(move |_| {
            // Its answers, so that the queue of the socket does not fill up.
            while let Ok(ReceiveResult::Message(_)) = client.take() {}
            client.send(&Request::Resize(size), &[])
        });
        sent.await?.map_err(|error| unanswered_problem(&error))
    }
}

async fn lost(sender: &SocketSender) -> Result<(), Closed> {
    let problem = Problem::new(Kind::Unanswered, "the supervisor of the sandbox is gone; attach again");
    attach::tell(sender, "error", &problem.json()).await
}

/// Writes what a client types, as long as it is there.
async fn write(typed: &mut OwnedWriteHalf, bytes: &[u8], sender: &SocketSender) -> Result<(), Problem> {
    let written = tokio::select! {
        written = typed.write_all(bytes) => written,
        () = sender.gone() => return Ok(()),
    };
    written.map_err(|_| Problem::new(Kind::HasEnded, "the terminal is gone"))
}
