//! `ports`: where a sandbox listens.

use std::fmt::Write as _;

use penfold_control::Resolver;
use serde_json::json;

use crate::answer::{ToolAnswer, ToolError};
use crate::arguments::SandboxArguments;
use crate::find::{called, look};
use crate::host::ServerState;
use crate::listening::{Listening, listening};

pub(super) fn ports(host: &ServerState, given: &SandboxArguments) -> Result<ToolAnswer, ToolError> {
    let resolver = Resolver::new(host.root());
    let (known, seen) = look(&resolver, &given.sandbox)?;
    let found = listening(&resolver, &known, &seen)?;
    let name = called(&seen.id, seen.name.as_deref());
    let text = if found.is_empty() {
        format!("{name} is {} and listens on no TCP port", seen.status)
    } else {
        format!("{name} listens on\n{}", lines(&found))
    };
    Ok(ToolAnswer::new(
        text,
        json!({ "id": seen.id, "name": seen.name, "status": seen.status, "ports": found }),
    ))
}

/// A line for each port.
pub(super) fn lines(found: &[Listening]) -> String {
    found.iter().fold(String::new(), |mut text, one| {
        let _ = writeln!(text, "{}  pid {}  {}", one.port, one.pid, one.command);
        text
    })
}
