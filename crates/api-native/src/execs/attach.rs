//! The WebSocket of an exec: its output, its input, signals and the size of its terminal.

use std::pin::pin;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use penfold_client::{Event, EventParser, Received};
use penfold_control::execs;
use penfold_server::AppState;
use penfold_server::execs::{find_exec, write_input};
use penfold_server::sockets::{Closed, Message, NoUpgrade, Socket, SocketReceiver, SocketSender, Upgrade};
use penfold_state::Files;
use penfold_state::wire::Size;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::logs;
use super::problems::exec_problem;
use super::running::TerminalSize;
use crate::extract::{Path, Query};
use crate::log_answer::{self, LogFeeds, LogQuery};
use crate::problem::{Kind, Problem};

/// The largest message of a client.
const LARGEST: usize = 1 << 20;
/// The messages with input that wait for the command. While one more waits, nothing else of the client is read.
const WAITING: usize = 16;
/// The time that the input of a client that has left has to reach the command.
const LAST_INPUT: Duration = Duration::from_secs(5);

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(attach))
}

/// Where to begin.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AttachQuery {
    /// An offset of an earlier event. Without it, at the oldest output that is kept.
    offset: Option<u64>,
    /// Begin this many lines before the end.
    lines: Option<u64>,
}

/// A text message of a client. A binary message is input.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ClientMessage {
    /// Input, as text.
    Input(String),
    /// The end of the input; a terminal has none.
    EndInput(bool),
    /// The size of the terminal.
    Resize(TerminalSize),
    /// A signal for the command, by name or number.
    Signal(String),
}

/// Opens a WebSocket with the output of an exec, from any offset and to its end, and with its input. A text message of the server is an event
/// of a followed log with the fields `event`, `id` and `data`. A binary message of the client is input, a text message a `ClientMessage`.
/// Any number of clients may attach; one that leaves ends nothing.
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
    Query(AttachQuery { offset, lines }): Query<AttachQuery>,
    upgrade: Result<Upgrade, NoUpgrade>,
) -> Result<Response, Problem> {
    let upgrade = upgrade.map_err(|why| Problem::new(Kind::BadRequest, why.to_string()))?;
    let exec = app.engine.call(move |scope| find_exec(scope, &id, number)).await??;
    let files = exec.files.clone();
    let query = LogQuery::followed(offset, lines);
    let open = move |_: &_, from| logs::source(files, number, from);
    let output = log_answer::answer((AppState::clone(&app), feeds), query, HeaderMap::new(), open).await?;
    let attached = Attached { app: AppState::clone(&app), files: exec.files, number };
    Ok(upgrade.accept(&app, LARGEST, move |socket| attached.serve(socket, output.into_body())))
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
    /// Serves the socket until the end of the output was sent, or the client leaves.
    async fn serve(self, socket: Socket, output: Body) {
        let (mut receiver, sender) = socket.split();
        let (input, waiting) = mpsc::channel(WAITING);
        let shown = show(output, &sender);
        let typed = self.write(waiting, &sender);
        let heard = self.hear(&mut receiver, input, &sender);
        let (mut typed, mut heard) = (pin!(typed), pin!(heard));
        let left = async {
            let mut has_typed = false;
            loop {
                tokio::select! {
                    () = typed.as_mut(), if !has_typed => has_typed = true,
                    () = heard.as_mut() => break,
                }
            }
            if !has_typed {
                let _ = tokio::time::timeout(LAST_INPUT, typed).await;
            }
        };
        tokio::select! {
            _ = shown => {}
            () = left => {}
        }
    }

    /// Reads what the client sends, until it leaves.
    async fn hear(&self, receiver: &mut SocketReceiver, input: mpsc::Sender<Input>, sender: &SocketSender) {
        while let Some(message) = receiver.receive().await {
            let done = match message {
                Message::Binary(bytes) => {
                    let _ = input.send(Input::Bytes(bytes)).await;
                    Ok(())
                }
                Message::Text(text) => match serde_json::from_str(&text) {
                    Ok(message) => self.act(message, &input).await,
                    Err(error) => Err(Problem::new(Kind::InvalidJson, error.to_string())),
                },
            };
            if let Err(problem) = done
                && tell(sender, problem).await.is_err()
            {
                return;
            }
        }
    }

    async fn act(&self, message: ClientMessage, input: &mpsc::Sender<Input>) -> Result<(), Problem> {
        let (files, number) = (self.files.clone(), self.number);
        let asked = match message {
            ClientMessage::Input(text) => {
                let _ = input.send(Input::Bytes(text.into())).await;
                return Ok(());
            }
            ClientMessage::EndInput(ends) => {
                if ends {
                    let _ = input.send(Input::End).await;
                }
                return Ok(());
            }
            ClientMessage::Resize(TerminalSize { rows, columns }) => {
                self.app
                    .engine
                    .call(move |_| execs::resize_exec(&files, number, Size { rows, columns }))
                    .await?
            }
            ClientMessage::Signal(signal) => {
                let signal = crate::signal::parse_signal("signal", &signal)?.as_raw();
                self.app.engine.call(move |_| execs::signal_exec(&files, number, signal)).await?
            }
        };
        asked.map_err(|error| exec_problem(error).beside_end(&self.files))
    }

    /// Writes the input that waits, until no more comes. The first input that cannot be written is told; the rest is dropped.
    async fn write(&self, mut waiting: mpsc::Receiver<Input>, sender: &SocketSender) {
        let mut is_closed = false;
        while let Some(input) = waiting.recv().await {
            if is_closed {
                continue;
            }
            let (files, number) = (self.files.clone(), self.number);
            let done = match input {
                Input::Bytes(bytes) => write_input(&self.app.engine, &files, number, &bytes)
                    .await
                    .map_err(|error| Problem::new(Kind::Refused, error.to_string())),
                Input::End => {
                    match self.app.engine.call(move |_| execs::close_exec_input(&files, number)).await {
                        Ok(done) => done.map_err(exec_problem),
                        Err(error) => Err(error.into()),
                    }
                }
            };
            if let Err(problem) = done {
                is_closed = true;
                if tell(sender, problem).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Sends the events of a followed log, to its end.
async fn show(output: Body, sender: &SocketSender) -> Result<(), Closed> {
    let mut output = pin!(output);
    let mut events = EventParser::default();
    while let Some(Ok(frame)) = std::future::poll_fn(|context| output.as_mut().poll_frame(context)).await {
        events.feed(frame.data_ref().map(Bytes::as_ref).unwrap_or_default());
        while let Some(received) = events.take() {
            if let Received::Event(event) = received {
                sender.send(Message::Text(event_text(&event))).await?;
            }
        }
    }
    Ok(())
}

/// The message of an event, whose data is JSON.
fn event_text(Event { name, id, data }: &Event) -> String {
    let (name, id) = (Value::from(name.as_str()), json!(id));
    format!(r#"{{"event":{name},"id":{id},"data":{data}}}"#)
}

/// Tells the client what is wrong with its message. The socket goes on.
async fn tell(sender: &SocketSender, problem: Problem) -> Result<(), Closed> {
    let data = problem.text();
    sender.send(Message::Text(event_text(&Event { name: "refused".to_owned(), id: None, data }))).await
}
