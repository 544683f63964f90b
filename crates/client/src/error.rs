//! Why a request has no answer, or one that is an error.

use std::io;
use std::time::Duration;

use penfold_teardown::Survivor;
use serde::Deserialize;

use crate::address::ServerAddress;

/// The time for which a client tries to reach a server that is away.
pub const RECONNECT: Duration = Duration::from_secs(10);

/// A request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client could not be made.
    #[error("cannot make a client")]
    Client(#[source] io::Error),
    /// Nothing was sent: no server accepted the connection.
    #[error("cannot connect to the server at `{host}`")]
    Unreachable {
        /// The address.
        host: ServerAddress,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The connection was lost after the request was sent, perhaps in part; the server may have done the work.
    #[error("lost the connection to the server at `{host}`")]
    Lost {
        /// The address.
        host: ServerAddress,
        /// The reason.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server answered with an error.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// The answer is none of penfold's native API.
    #[error("the server at `{host}` sent an answer that is none of penfold's API: {reason}")]
    Foreign {
        /// The address.
        host: ServerAddress,
        /// The reason.
        reason: String,
    },
}

/// A problem document of the server.
#[derive(Debug, Clone, Deserialize)]
pub struct Problem {
    /// `urn:penfold:problem:` and a word.
    pub r#type: String,
    /// The kind of the error, for people.
    #[serde(default)]
    pub title: String,
    /// The status code.
    #[serde(default)]
    pub status: u16,
    /// This error, for people.
    #[serde(default)]
    pub detail: String,
    /// The processes and resources that still exist.
    #[serde(default)]
    pub remaining: Vec<Survivor>,
    /// The sandbox that has the name.
    #[serde(default)]
    pub holder: Option<String>,
}

impl Problem {
    /// The word that tells the kind of the error.
    pub fn kind(&self) -> &str {
        self.r#type.strip_prefix("urn:penfold:problem:").unwrap_or(&self.r#type)
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.detail.is_empty() { &self.title } else { &self.detail })
    }
}

impl Error {
    /// The problem document, if the server sent one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Error::Problem(problem) => Some(problem),
            _ => None,
        }
    }

    /// Whether the server is away, perhaps only while it restarts: a later request may succeed.
    pub fn is_passing(&self) -> bool {
        match self {
            Error::Unreachable { .. } | Error::Lost { .. } => true,
            Error::Problem(problem) => problem.kind() == "draining",
            Error::Client(_) | Error::Foreign { .. } => false,
        }
    }
}
