//! Why a word means no sandbox, or several.

use std::io;

/// A sandbox that may be meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The short id.
    pub id: String,
    /// The name, if known.
    pub name: Option<String>,
}

impl std::fmt::Display for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.id, self.name.as_deref().unwrap_or("-"))
    }
}

/// Why an id or a name does not mean one sandbox.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// No sandbox has this id or name.
    #[error("no sandbox is called `{word}`")]
    NotFound {
        /// The id or name.
        word: String,
    },
    /// Several sandboxes match.
    #[error("`{word}` matches {} sandboxes: {}", candidates.len(), listed(candidates))]
    Ambiguous {
        /// The id or name.
        word: String,
        /// The sandboxes that match.
        candidates: Vec<Candidate>,
    },
    /// No sandbox was found, and not all could be read.
    #[error("cannot tell which sandbox `{word}` is: {why}")]
    Unreadable {
        /// The id or name.
        word: String,
        /// The obstacle.
        why: String,
        /// The kind of the obstacle.
        kind: io::ErrorKind,
    },
}

fn listed(candidates: &[Candidate]) -> String {
    candidates.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
