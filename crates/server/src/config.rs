//! The settings of the server.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use penfold_request::SandboxSpec;

use crate::limits::Limits;
use crate::tokens::Tokens;

/// The settings of the server.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory with the records of all sandboxes.
    pub state_root: PathBuf,
    /// The directory in which scratch directories are made.
    pub temporary: PathBuf,
    /// The penfold program, which the server executes to start a sandbox.
    pub program: PathBuf,
    /// The environment of the server, of which sandboxes get a part.
    pub environment: Vec<(OsString, OsString)>,
    /// The tokens of callers on TCP; without any, every caller on TCP is served.
    pub tokens: Tokens,
    /// The file of the tokens, which is read again at SIGHUP. Without one, SIGHUP ends the server.
    pub token_file: Option<PathBuf>,
    /// Whether this process had a controlling terminal when it began: a SIGHUP that comes with its end ends the server.
    pub has_terminal: bool,
    /// Requests by name, for dialects whose clients name what a new sandbox is made of.
    pub templates: BTreeMap<String, SandboxSpec>,
    /// What a caller can use at most.
    pub limits: Limits,
    /// The time that requests have to finish once the server is asked to end.
    pub drain: Duration,
}

#[cfg(test)]
impl Config {
    /// Settings with which nothing can be started.
    pub(crate) fn of_test() -> Config {
        Config {
            state_root: "/nonexistent".into(),
            temporary: "/nonexistent".into(),
            program: "/nonexistent".into(),
            environment: Vec::new(),
            tokens: Tokens::default(),
            token_file: None,
            has_terminal: false,
            templates: BTreeMap::new(),
            limits: Limits::default(),
            drain: Duration::ZERO,
        }
    }
}
