//! The ports on which the processes of a sandbox listen.

use penfold_control::{Resolver, SandboxRef, SandboxView, view};
use penfold_process::{Listeners, Port};
use penfold_state::error_chain;
use serde::Serialize;

use crate::answer::ToolError;

/// A port with a listener.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Listening {
    #[serde(flatten)]
    pub(crate) port: Port,
    pub(crate) pid: i32,
    pub(crate) command: String,
}

/// Finds the ports of a sandbox. Of several processes that share a listener, the first one counts.
///
/// # Errors
/// When /proc cannot be read.
pub(crate) fn listening_ports(
    resolver: &Resolver,
    known: &SandboxRef,
    seen: &SandboxView,
) -> Result<Vec<Listening>, ToolError> {
    let members = view::list_members(resolver, known, seen, false)
        .map_err(|error| ToolError::new(format!("cannot read the processes: {}", error_chain(&error))))?;
    let mut listeners = Listeners::default();
    let mut found: Vec<Listening> = Vec::new();
    for member in members {
        for port in listeners.of(&[member.id.pid]) {
            if !found.iter().any(|known| known.port == port) {
                let pid = member.id.pid.as_raw_pid();
                found.push(Listening { port, pid, command: member.command.clone() });
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}
