//! `ps`: the sandboxes.

use std::fmt::Write as _;

use penfold_control::{Resolver, view};
use penfold_state::error_chain;
use serde_json::{Value, json};

use crate::answer::{ToolAnswer, ToolError};
use crate::arguments::PsArguments;
use crate::find::exit_json;
use crate::host::ServerState;
use crate::plain::plain_text;

/// The most sandboxes in an answer.
const MOST: usize = 100;
/// The most characters of a command.
const LONGEST_COMMAND: usize = 200;

pub(super) fn ps(host: &ServerState, given: &PsArguments) -> Result<ToolAnswer, ToolError> {
    let found = view::select_sandboxes(&Resolver::new(host.root()), given.ended)
        .map_err(|error| ToolError::new(format!("cannot list the sandboxes: {}", error_chain(&error))))?;
    let cut = found.len().saturating_sub(MOST);
    let mut text = String::new();
    let mut rows: Vec<Value> = Vec::new();
    for (_, seen) in found.iter().skip(cut) {
        let command: String = plain_text(seen.command_line().as_bytes())
            .replace('\n', " ")
            .chars()
            .take(LONGEST_COMMAND)
            .collect();
        let here = host.started.has(&seen.id);
        let name = seen.name.as_deref().unwrap_or("-");
        let _ = writeln!(
            text,
            "{}  {name}  {}{}  {command}",
            seen.id,
            seen.status,
            if here { ", started here" } else { "" }
        );
        rows.push(json!({
            "id": seen.id, "name": seen.name, "status": seen.status, "command": command, "started_here": here,
            "started_at_ms": seen.started_at_ms, "ended_at_ms": seen.ended_at_ms, "exit": exit_json(seen.exit),
            "cause": seen.cause, "profile": seen.profile,
        }));
    }
    if rows.is_empty() {
        text.push_str(if given.ended { "there are no sandboxes" } else { "no sandbox runs" });
    }
    if cut > 0 {
        let _ = write!(text, "[{cut} older sandboxes cut]");
    }
    Ok(ToolAnswer::new(text, json!({ "sandboxes": rows, "cut": cut })))
}
