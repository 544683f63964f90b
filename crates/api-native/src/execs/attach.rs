//! The WebSocket of an exec: its output, its input, signals and the size of its terminal.

use std::pin::pin;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use penfold_control::execs;
use penfold_server::AppState;
use penfold_server::execs::{find_exec, write_input};
use penfold_server::sockets::{Message, NoUpgrade, Socket, SocketReceiver, SocketSender, Upgrade};
use penfold_state::Files;
use penfold_state::wire::Size;
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use utoipa::IntoParams;

use super::logs;
use super::problems::exec_problem;
use crate::attach::{self, ClientMessage};
use crate::extract::{Path, Query};
use crate::log_answer::{self, LogFeeds, LogQuery};
use crate::model::TerminalSize;
use crate::problem::{Kind, Problem};
use crate::routes::{Routes, routes};

/// The messages with input that wait for the command. While one more waits, nothing else of the client is read.
const WAITING: usize = 16;
/// The time that the input of a client that has left has to reach the command.
const LAST_INPUT: Duration = Duration::from_secs(5);

pub(super) fn routes() -> Routes {
    Routes::new().routes(routes!(attach))
}

/// Where to begin, and what happens when the client leaves.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AttachQuery {
    /// The `id` of an earlier event. Without it, at the oldest output that is kept.
    offset: Option<u64>,
    /// Begin this many lines before the end.
    lines: Option<u64>,
    /// Stop the exec, with SIGHUP, when this client leaves or its connection is lost.
    #[serde(default)]
    ends_with_client: bool,
}

/// Opens a WebSocket with the output of an exec, from any offset and to its end, and with its input. A text message of the server is an event
/// of a followed log, with `event`, `id` and `data`; `refused` has the problem of a message of the client, `input_ended` comes once the command
/// can read the end of its input, unless it has ended before that was told. A binary message of the client is input, a text message one of `{"input": "text"}`, `{"end_input": true}`,
/// `{"resize": {"rows": 24, "columns": 80}}` and `{"signal": "INT"}`. Any number of clients may attach.
#[utoipa::path(
    get, path = "/sandboxes/{id}/execs/{number}/attach", tag = "execs", operation_id = "attachExec",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("number" = u32, Path, description = "the number of the exec"), AttachQuery,
    ),
    responses(
        (status = 101, description = "the connection is a WebSocket"),
        Problem,
    )
)]
async fn attach(
    State(app): State<AppState>,
    Extension(feeds): Extension<LogFeeds>,
    Path((id, number)): Path<(String, u32)>,
    Query(query): Query<AttachQuery>,
    upgrade: Result<Upgrade, NoUpgrade>,
) -> Result<Response, Problem> {
    let exec = app.engine.call(move |scope| find_exec(scope, &id, number)).await??;
    let upgrade = upgrade.map_err(|why| Problem::new(Kind::BadRequest, why.to_string()))?;
    let files = exec.files.clone();
    let wanted = LogQuery::followed(query.offset, query.lines);
    let open = move |_: &_, from| logs::source(files, number, from);
    let log = log_answer::answer((AppState::clone(&app), feeds), wanted, HeaderMap::new(), open).await?;
    let attached = Attached { app: AppState::clone(&app), files: exec.files, number };
    Ok(upgrade.accept(&app, attach::LARGEST, async move |socket| {
        if !attached.serve(socket, log.into_body()).await && query.ends_with_client {
            attached.hang_up().await;
        }
    }))
}

/// A client that is attached to an exec.
struct Attached {
    app: AppState,
    files: Files,
    number: u32,
}

/// What is to be done with the input.
enum Input {
    Bytes(Bytes),
    End,
}

impl Attached {
    /// Serves the socket until the end of the output was sent, or the client leaves: then this returns `false`.
    async fn serve(&self, socket: Socket, log: Body) -> bool {
        let (mut receiver, sender) = socket.split();
        let (input, waiting) = mpsc::channel(WAITING);
        let mut typed = pin!(self.write(waiting, &sender));
        let mut heard = pin!(self.hear(&mut receiver, input, &sender));
        let left = async {
            let mut has_typed = false;
            loop {
                tokio::select! {
                    () = typed.as_mut(), if !has_typed => has_typed = true,
                    () = heard.as_mut() => break,
                }
            }
            if self.app.drain.has_begun() {
                // The last event says so.
                std::future::pending::<()>().await;
            }
            // What it typed before it left reaches the command.
            if !has_typed {
                let _ = tokio::time::timeout(LAST_INPUT, typed).await;
            }
        };
        tokio::select! {
            shown = attach::show(log, &sender) => shown.is_ok(),
            () = left => false,
        }
    }

    /// Stops the exec because its client has left.
    async fn hang_up(&self) {
        let (files, number) = (self.files.clone(), self.number);
        let begun = self
            .app
            .engine
            .call(move |_| execs::begin_stop(&files, number, Some(Signal::HUP.as_raw()), None));
        if let Ok(Err(error)) = begun.await {
            tracing::debug!(number, %error, "the exec of a client that has left is not stopped");
        }
    }

    /// Reads what the client sends, until it leaves.
    async fn hear(&self, receiver: &mut SocketReceiver, input: mpsc::Sender<Input>, sender: &SocketSender) {
        while let Some(message) = receiver.receive().await {
            let done = match message {
                Message::Binary(bytes) => Ok(Some(Input::Bytes(bytes))),
                Message::Text(text) => match attach::parse(&text) {
                    Ok(message) => self.act(message).await,
                    Err(problem) => Err(problem),
                },
            };
            let done = match done {
                Ok(Some(given)) => {
                    tokio::select! {
                        _ = input.send(given) => {}
                        // While the command reads nothing, nothing is read from the client.
                        () = sender.gone() => return,
                    }
                    Ok(())
                }
                Ok(None) => Ok(()),
                Err(problem) => Err(problem),
            };
            if let Err(problem) = done
                && attach::refuse(sender, problem).await.is_err()
            {
                return;
            }
        }
    }

    /// Does what a client asks for, or returns what is for the command.
    async fn act(&self, message: ClientMessage) -> Result<Option<Input>, Problem> {
        let (files, number) = (self.files.clone(), self.number);
        let asked = match message {
            ClientMessage::Input(text) => return Ok(Some(Input::Bytes(text.into()))),
            ClientMessage::EndInput(ends) => return Ok(ends.then_some(Input::End)),
            ClientMessage::Resize(TerminalSize { rows, columns }) => {
                let size = Size { rows, columns };
                self.app.engine.call(move |_| execs::resize_exec(&files, number, size)).await?
            }
            ClientMessage::Signal(signal) => {
                let signal = crate::signal::parse_signal("signal", &signal)?.as_raw();
                self.app.engine.call(move |_| execs::signal_exec(&files, number, signal)).await?
            }
        };
        asked.map(|()| None).map_err(|error| exec_problem(error).beside_end(&self.files))
    }

    /// Writes the input that waits, until no more comes. The first input that cannot be written is told; the rest is dropped.
    async fn write(&self, mut waiting: mpsc::Receiver<Input>, sender: &SocketSender) {
        let mut is_closed = false;
        while let Some(input) = waiting.recv().await {
            if is_closed {
                continue;
            }
            let told = match self.write_one(input).await {
                Ok(ended) if ended => attach::tell(sender, "input_ended", &json!({})).await,
                Ok(_) => Ok(()),
                Err(problem) => {
                    is_closed = true;
                    attach::refuse(sender, problem).await
                }
            };
            if told.is_err() {
                return;
            }
        }
    }

    /// Writes input. Returns whether it has ended.
    async fn write_one(&self, input: Input) -> Result<bool, Problem> {
        let (files, number) = (self.files.clone(), self.number);
        match input {
            Input::Bytes(bytes) => {
                let written = write_input(&self.app.engine, &files, number, &bytes).await;
                written.map(|()| false).map_err(|error| Problem::new(Kind::Refused, error.to_string()))
            }
            Input::End => {
                self.app
                    .engine
                    .call(move |_| execs::close_exec_input(&files, number))
                    .await?
                    .map_err(exec_problem)?;
                Ok(true)
            }
        }
    }
}
