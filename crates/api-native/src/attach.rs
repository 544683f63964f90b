//! What the WebSockets of execs and of terminals share: the messages in both directions.

use std::pin::pin;

use axum::body::{Body, Bytes, HttpBody as _};
use penfold_client::{Event, EventParser, Received};
use penfold_server::sockets::{Closed, Message, SocketSender};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::model::TerminalSize;
use super::problem::{Kind, Problem};

/// The largest message of a client.
pub(super) const LARGEST: usize = 1 << 20;

/// A text message of a client; a binary message is input.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ClientMessage {
    /// Input, as text.
    Input(String),
    /// `true`: the end of the input. A terminal has none.
    EndInput(bool),
    /// The size of the terminal.
    Resize(TerminalSize),
    /// A signal for the command of an exec, by name or number.
    Signal(String),
}

/// Reads a text message of a client.
///
/// # Errors
/// The problem to tell.
pub(super) fn parse(text: &str) -> Result<ClientMessage, Problem> {
    serde_json::from_str(text).map_err(|error| {
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        let words = "one of `input`, `end_input`, `resize` and `signal` is expected";
        let kind = if is_json { Kind::InvalidField } else { Kind::InvalidJson };
        Problem::new(kind, format!("{words}: {error}"))
    })
}

/// Sends the events of a followed log, to its end.
pub(super) async fn show(log: Body, sender: &SocketSender) -> Result<(), Closed> {
    let mut log = pin!(log);
    let mut events = EventParser::default();
    while let Some(Ok(frame)) = std::future::poll_fn(|context| log.as_mut().poll_frame(context)).await {
        events.feed(frame.data_ref().map(Bytes::as_ref).unwrap_or_default());
        while let Some(received) = events.take() {
            if let Received::Event(Event { name, id, data }) = received {
                sender.send(message(&name, id.as_deref(), &data)).await?;
            }
        }
    }
    Ok(())
}

/// Sends an event that is in no log.
pub(super) async fn tell(sender: &SocketSender, name: &str, data: &Value) -> Result<(), Closed> {
    sender.send(message(name, None, &data.to_string())).await
}

/// Tells the client what is wrong with its message. The socket goes on.
pub(super) async fn refuse(sender: &SocketSender, problem: Problem) -> Result<(), Closed> {
    tell(sender, "refused", &problem.json()).await
}

/// The message of an event, whose data is JSON.
fn message(name: &str, id: Option<&str>, data: &str) -> Message {
    let (name, id) = (Value::from(name), json!(id));
    Message::Text(format!(r#"{{"event":{name},"id":{id},"data":{data}}}"#))
}
