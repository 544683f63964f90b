//! `ports`: where a sandbox listens.

use std::fmt::Write as _;

use penfold_control::ports::{ListeningMember, ports_of};
use penfold_control::{Resolver, SandboxRef, SandboxView};
use penfold_state::error_chain;
use serde_json::json;

use crate::answer::{ToolAnswer, ToolError};
use crate::arguments::SandboxArguments;
use crate::find::{sandbox_words, view_sandbox};
use crate::host::ServerState;

pub(super) fn ports(host: &ServerState, given: &SandboxArguments) -> Result<ToolAnswer, ToolError> {
    let resolver = Resolver::new(host.root());
    let (known, seen) = view_sandbox(&resolver, &given.sandbox)?;
    let found = listening_members(&resolver, &known, &seen)?;
    let name = sandbox_words(&seen.id, seen.name.as_deref());
    let text = if found.is_empty() {
        format!("{name} is {} and listens on no TCP port", seen.status)
    } else {
        format!("{name} listens on\n{}", port_lines(&found))
    };
    Ok(ToolAnswer::new(
        text,
        json!({ "id": seen.id, "name": seen.name, "status": seen.status, "ports": found }),
    ))
}

/// The members that listen.
pub(super) fn listening_members(
    resolver: &Resolver,
    known: &SandboxRef,
    seen: &SandboxView,
) -> Result<Vec<ListeningMember>, ToolError> {
    ports_of(resolver, known, seen)
        .map_err(|error| ToolError::new(format!("cannot read the processes: {}", error_chain(&error))))
}

/// A line for each port.
pub(super) fn port_lines(found: &[ListeningMember]) -> String {
    found.iter().fold(String::new(), |mut text, one| {
        let _ = writeln!(text, "{}  pid {}  {}", one.port, one.pid, one.command);
        text
    })
}
