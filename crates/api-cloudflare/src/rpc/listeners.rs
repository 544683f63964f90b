//! Functions of the client that hear what code writes, one event after the other.

use std::collections::HashMap;

use axum::body::Body;
use penfold_server::sockets::Closed;
use penfold_state::time::now_ms;
use serde_json::{Value as Json, json};

use super::outcome::Outcome;
use super::outgoing::Outgoing;
use super::wire::{Failure, Id, Value};
use crate::event_reader::EventReader;

/// The functions among the arguments of a call, by their names.
#[derive(Debug)]
pub(crate) struct Listeners(HashMap<String, Id>);

impl Listeners {
    pub(crate) fn among(arguments: &[Value]) -> Listeners {
        let objects = arguments.iter().filter_map(|value| match value {
            Value::Object(fields) => Some(fields),
            _ => None,
        });
        let functions = objects.flatten().filter_map(|(name, value)| match value {
            Value::Callback(id) => Some((name.clone(), *id)),
            _ => None,
        });
        Listeners(functions.collect())
    }

    /// Calls the functions with the events of a stream, and returns what the call gives then.
    pub(crate) async fn hear(&self, outcome: Outcome, outgoing: &Outgoing) -> Outcome {
        let Some((source, _)) = outcome.take_stream() else { return outcome };
        match self.hear_all(source.body, outgoing).await {
            Ok(Ok(())) => Outcome::undefined(),
            Ok(Err(failure)) => Outcome::failed(failure),
            Err(_) => Outcome::failed(Failure::new("the client is gone")),
        }
    }

    async fn hear_all(&self, body: Body, outgoing: &Outgoing) -> Result<Result<(), Failure>, Closed> {
        let mut events = EventReader::new(body);
        loop {
            let event = match events.next().await {
                Ok(Some((event, _))) => event,
                Ok(None) => return Ok(Ok(())),
                Err(why) => return Ok(Err(Failure::new(&why))),
            };
            let Some((function, argument)) = call_of(event) else { continue };
            let Some(&id) = self.0.get(function) else { continue };
            if !outgoing.call(id, argument).await? {
                return Ok(Err(Failure::new(&format!("the function `{function}` of the client failed"))));
            }
        }
    }
}

/// Returns which function hears an event, and its argument.
fn call_of(mut event: Json) -> Option<(&'static str, Json)> {
    let written = |event: &Json| json!({ "text": event["text"], "timestamp": now_ms() });
    match event["type"].as_str()? {
        "stdout" => Some(("onStdout", written(&event))),
        "stderr" => Some(("onStderr", written(&event))),
        "result" => {
            let fields = event.as_object_mut()?;
            fields.retain(|name, _| name != "type" && name != "metadata");
            Some(("onResult", event))
        }
        "error" => {
            let [name, message, traceback] = ["ename", "evalue", "traceback"].map(|name| event[name].take());
            Some(("onError", json!({ "name": name, "message": message, "traceback": traceback })))
        }
        _ => None,
    }
}
