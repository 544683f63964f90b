//! What the server needs to know.

use std::ffi::OsString;
use std::path::PathBuf;

/// The settings of a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// The state root, absolute.
    pub state_root: PathBuf,
    /// The path of penfold, to start sandboxes.
    pub program: PathBuf,
    /// The environment of the sandboxes.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether only tools that change nothing are offered.
    pub read_only: bool,
    /// Whether `stop` and `exec` act on sandboxes that this server has not started.
    pub all: bool,
    /// Whether the sandboxes live on when the server ends.
    pub keep: bool,
}
