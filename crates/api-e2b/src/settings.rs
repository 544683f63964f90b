//! What `POST /init` has set for this machine. It is kept in a file of the state root that nobody else can read, so that every later
//! server of the root has it: one that is killed does not open up.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use penfold_state::secret::{read_private, write_private};
use serde::{Deserialize, Serialize};

/// The file, below the state root.
const FILE: &str = "envd.json";

/// What `POST /init` has set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Settings {
    /// The access token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) access_token: Option<String>,
    /// The variables of all commands.
    #[serde(default)]
    pub(crate) env_vars: BTreeMap<String, String>,
    /// The user of requests that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) default_user: Option<String>,
    /// The directory of commands that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) default_workdir: Option<String>,
}

impl Settings {
    /// Reads what was set.
    ///
    /// # Errors
    /// When the file cannot be read; then nobody is to be served.
    pub(crate) fn read(root: &Path) -> io::Result<Settings> {
        let text = read_private(root, FILE)?;
        let settings = text.map(|text| serde_json::from_slice(&text)).transpose();
        Ok(settings.map_err(io::Error::other)?.unwrap_or_default())
    }

    /// Keeps what is set now.
    ///
    /// # Errors
    /// When the file cannot be written; then it is as it was.
    pub(crate) fn keep(&self, root: &Path) -> io::Result<()> {
        write_private(root, FILE, &serde_json::to_vec(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_read_again_and_nothing_else_is() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Settings::read(root.path()).unwrap(), Settings::default());
        let settings = Settings { access_token: Some("token".to_owned()), ..Settings::default() };
        settings.keep(root.path()).unwrap();
        assert_eq!(Settings::read(root.path()).unwrap(), settings);
        write_private(root.path(), FILE, b"{").unwrap();
        assert!(Settings::read(root.path()).is_err());
    }
}
