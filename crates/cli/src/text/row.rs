//! A sandbox as `--json` prints it.

use std::path::PathBuf;

use penfold_control::View;
use serde::Serialize;

/// A sandbox as `--json` prints it.
#[derive(Serialize)]
pub(crate) struct Row<'a> {
    pub(crate) schema: u32,
    #[serde(flatten)]
    pub(crate) view: &'a View,
    /// The user and the state root, in a list of all users' sandboxes.
    #[serde(flatten)]
    pub(crate) home: Option<&'a UserHome>,
}

/// The user of a sandbox, and the state root with its record.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct UserHome {
    /// The number of the user.
    pub(crate) uid: u32,
    /// The name of the user; `None` if `/etc/passwd` has none.
    pub(crate) user: Option<String>,
    /// The state root.
    pub(crate) root: PathBuf,
}

impl Row<'_> {
    pub(crate) fn of(view: &View) -> Row<'_> {
        Row { schema: penfold_state::record::SCHEMA, view, home: None }
    }
}
