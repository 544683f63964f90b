//! What all calls share.

use std::path::Path;

use penfold_control::SandboxRef;

use crate::answer::ToolError;
use crate::config::Config;
use crate::find::sandbox_words;
use crate::started::Started;

/// The settings of the server, and the sandboxes that it has started.
#[derive(Debug)]
pub(crate) struct ServerState {
    pub(crate) config: Config,
    pub(crate) started: Started,
}

impl ServerState {
    /// The state root.
    pub(crate) fn root(&self) -> &Path {
        &self.config.state_root
    }

    /// Checks that this server may end the sandbox or run commands in it.
    ///
    /// # Errors
    /// When another process has started the sandbox, and the server was not started with `--all`.
    pub(crate) fn may_act(&self, tool: &str, known: &SandboxRef) -> Result<(), ToolError> {
        if self.config.all || self.started.has(&known.id) {
            return Ok(());
        }
        let name = sandbox_words(&known.id, known.name.as_deref());
        Err(ToolError::new(format!(
            "{name} was not started by this server, so `{tool}` leaves it alone; a server that was started as `penfold mcp --all` \
             acts on all sandboxes"
        )))
    }
}
