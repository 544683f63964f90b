//! Ten thousand connections to `penfold serve`: what they cost it, and a request beside them.

use std::time::Instant;

use serde_json::{Value, json};

use super::followers::anonymous;
use super::http::Connection;
use super::{Figures, Server};
use crate::error::Error;
use crate::{Args, talk};

/// The open connections, each of which has asked once.
const OPEN: u32 = 10_000;
/// The open connections in a quick run.
const FEW: u32 = 100;

pub(super) fn measure(args: &Args, server: &Server, figures: &mut Figures) -> Result<(), Error> {
    let count = if args.quick { FEW } else { OPEN };
    talk(&format!("server: {count} connections"));
    let mut caller = Connection::open(server.address)?;
    let start = |caller: &mut Connection| {
        let sandbox = caller.call("POST", "/v1/sandboxes", &json!({ "command": ["sleep", "170"] }))?;
        Ok::<_, Error>(sandbox.get("id").and_then(Value::as_str).unwrap_or_default().to_owned())
    };
    let listed = start(&mut caller)?;
    let before = anonymous(server)?;
    let mut open = Vec::new();
    for _ in 0..count {
        let mut one = Connection::open(server.address)?;
        one.call("GET", &format!("/v1/sandboxes/{listed}"), &Value::Null)?;
        open.push(one);
    }
    figures.connection_anonymous = anonymous(server)?.saturating_sub(before);
    for _ in 0..args.rounds(20) {
        let begun = Instant::now();
        caller.call("GET", "/v1/sandboxes", &Value::Null)?;
        figures.list_beside_connections.push(begun.elapsed());
        let id = start(&mut caller)?;
        let begun = Instant::now();
        // A connection of its own, as a client that comes late has it.
        Connection::open(server.address)?.call("POST", &format!("/v1/sandboxes/{id}/kill"), &json!({}))?;
        figures.kill_beside_connections.push(begun.elapsed());
        caller.call("DELETE", &format!("/v1/sandboxes/{id}"), &Value::Null)?;
    }
    drop(open);
    caller.call("DELETE", &format!("/v1/sandboxes/{listed}"), &Value::Null)?;
    Ok(())
}
