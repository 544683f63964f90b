//! The bodies of answers about sandboxes.

use serde::Deserialize;
use utoipa::ToSchema;

pub(super) use penfold_api::{EndResult, Ended, Sandbox, SandboxPage};

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TerminalSize {
    /// Lines.
    #[schema(value_type = u16)]
    pub(super) rows: u16,
    /// Columns.
    #[schema(value_type = u16)]
    pub(super) columns: u16,
}
