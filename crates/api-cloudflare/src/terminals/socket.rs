//! `/ws/terminal`: one terminal for one client, with the messages of the reference from 0.13 on.
//!
//! Each part of the output comes as a text message `chunk` with its cursor and length, and then a binary one. What was there before
//! comes first, then `ready`, and then what the terminal shows.

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::Uri;
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use penfold_server::sockets::{Closed, Message, NoUpgrade, Socket, SocketReceiver, SocketSender, Upgrade};
use penfold_state::wire::Size;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::RouteResult;
use crate::api::ApiState;
use crate::error::{ApiError, Code};
use crate::event_reader::EventReader;
use crate::ids::query_value;
use crate::log_events::WantedOutput;
use crate::runtime;
use crate::ws;

use super::control;
use super::look::Terminal;
use super::routes::{answer_with_output, find};

/// The path of a terminal.
pub(crate) const PATH: &str = "/ws/terminal";
/// The largest message of a client.
const LARGEST: usize = 1 << 20;

/// The route.
pub(crate) fn socket_routes() -> Router<ApiState> {
    Router::new().route("/ws/terminal", get(open))
}

/// A text message of a client.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Control {
    Resize {
        cols: u16,
        rows: u16,
    },
    #[serde(other)]
    Unknown,
}

async fn open(State(api): State<ApiState>, uri: Uri, upgrade: Result<Upgrade, NoUpgrade>) -> RouteResult {
    let upgrade = upgrade.map_err(ws::no_upgrade)?;
    let query = |name| query_value(uri.query().unwrap_or_default(), name);
    if let Some(expected) = query("runtimeIncarnationID") {
        api.call(move |api| runtime::check_incarnation(api, &expected)).await?;
    }
    let Some(id) = query("terminalId") else {
        let error = ApiError::new(Code::ValidationFailed, "terminalId is missing");
        return Err(error.with("field", "terminalId"));
    };
    let terminal = find(&api, id).await?;
    let side = |name| query(name).and_then(|text| text.parse().ok()).filter(|&side| side > 0);
    if let (Some(columns), Some(rows), true) = (side("cols"), side("rows"), terminal.exec.is_running()) {
        let terminal = terminal.clone();
        api.call(move |_| control::resize(&terminal, Size { rows, columns })).await?;
    }
    let cursor = query("cursor");
    let wanted = WantedOutput::after(cursor.clone(), false);
    let before = answer_with_output(&api, terminal.clone(), wanted).await?.into_body();
    let client = Client { api: ApiState::clone(&api), terminal, cursor };
    Ok(upgrade.accept(&api.app, LARGEST, move |socket| client.serve(socket, before)))
}

/// A client of a terminal.
struct Client {
    api: ApiState,
    terminal: Terminal,
    /// The cursor of the last part that was sent.
    cursor: Option<String>,
}

/// Why no more output is sent.
enum Stop {
    /// The terminal has ended, or the client is gone.
    Over,
    /// A sentence for the client.
    Failed(String),
}

impl From<Closed> for Stop {
    fn from(_: Closed) -> Stop {
        Stop::Over
    }
}

impl Client {
    /// Serves the socket until the terminal has ended or the client leaves. The terminal stays.
    async fn serve(mut self, socket: Socket, before: Body) {
        let (mut receiver, sender) = socket.split();
        let (api, terminal) = (ApiState::clone(&self.api), self.terminal.clone());
        tokio::select! {
            shown = self.show(&sender, before) => {
                if let Err(Stop::Failed(why)) = shown {
                    // The client may be gone.
                    let _ = say(&sender, &json!({ "type": "error", "message": why })).await;
                }
            }
            () = hear(&api, &terminal, &mut receiver, &sender) => {}
        }
    }

    async fn show(&mut self, sender: &SocketSender, before: Body) -> Result<(), Stop> {
        let mut end = self.send_all(sender, before).await?;
        say(sender, &json!({ "type": "ready", "cursor": self.cursor })).await?;
        if end.is_none() {
            let wanted = WantedOutput::after(self.cursor.clone(), true);
            let followed = answer_with_output(&self.api, self.terminal.clone(), wanted).await;
            let followed = followed.map_err(|error| Stop::Failed(error.message().to_owned()))?;
            end = self.send_all(sender, followed.into_body()).await?;
        }
        if let Some(end) = end {
            let why = match end.get("exit") {
                Some(exit) => json!({ "type": "exit", "cursor": end["cursor"], "exit": exit }),
                None => json!({ "type": "error", "message": end["error"]["message"] }),
            };
            say(sender, &why).await?;
        }
        Ok(())
    }

    /// Sends the events of a body, and returns the last one if it is the end of the terminal.
    async fn send_all(&mut self, sender: &SocketSender, body: Body) -> Result<Option<Value>, Stop> {
        let mut events = EventReader::new(body);
        while let Some((event, _)) = events.next().await.map_err(Stop::Failed)? {
            let cursor = event["cursor"].as_str().map(str::to_owned);
            match event["type"].as_str() {
                Some("terminal") => return Ok(Some(event)),
                Some("data") => {
                    let bytes = STANDARD_NO_PAD.decode(event["data"].as_str().unwrap_or_default());
                    let bytes = bytes.unwrap_or_default();
                    let chunk = json!({ "type": "chunk", "cursor": cursor, "byteLength": bytes.len() });
                    say(sender, &chunk).await?;
                    sender.send(Message::Binary(bytes.into())).await?;
                }
                _ => say(sender, &json!({ "type": "truncated", "cursor": cursor })).await?,
            }
            self.cursor = cursor;
        }
        Ok(None)
    }
}

/// Types what the client sends, until it leaves.
async fn hear(api: &ApiState, terminal: &Terminal, receiver: &mut SocketReceiver, sender: &SocketSender) {
    while let Some(message) = receiver.receive().await {
        let done = match message {
            Message::Binary(bytes) => {
                tokio::select! {
                    typed = control::type_bytes(api, terminal, "write", &bytes) => typed,
                    () = sender.gone() => return,
                }
            }
            Message::Text(text) => control_terminal(api, terminal, &text).await,
        };
        if let Err(error) = done
            && say(sender, &json!({ "type": "error", "message": error.message() })).await.is_err()
        {
            return;
        }
    }
}

async fn control_terminal(api: &ApiState, terminal: &Terminal, text: &str) -> Result<(), ApiError> {
    match serde_json::from_str(text) {
        Ok(Control::Resize { cols, rows }) if cols > 0 && rows > 0 => {
            let terminal = terminal.clone();
            api.call(move |_| control::resize(&terminal, Size { rows, columns: cols })).await
        }
        Ok(Control::Unknown) => Ok(()),
        _ => Err(ApiError::new(Code::ValidationFailed, "Invalid control message")),
    }
}

async fn say(sender: &SocketSender, message: &Value) -> Result<(), Closed> {
    sender.send(Message::Text(message.to_string())).await
}
