//! The errors of the server.

use std::error::Error as _;

use penfold_server::ServeError;
use penfold_state::sentence_chain;

use super::{Failure, FailureKind};

impl From<&ServeError> for FailureKind {
    fn from(error: &ServeError) -> FailureKind {
        match error {
            ServeError::Runtime(source) | ServeError::Listen { source, .. } => source.into(),
            ServeError::LoopbackToken(_) | ServeError::Token(_) => FailureKind::Usage,
        }
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Failure {
        let kind = FailureKind::from(&error);
        let hint = match error {
            ServeError::LoopbackToken(_) => {
                Some("`--token-file FILE`, or `--insecure-no-token` to serve every local user")
            }
            ServeError::Token(_) => Some("`--token-file FILE`"),
            ServeError::Runtime(_) | ServeError::Listen { .. } => None,
        };
        let failure = match error.source() {
            Some(source) => Failure::new(kind, error.to_string())
                .because(sentence_chain(source.to_string(), source.source())),
            None => Failure::new(kind, error.to_string()),
        };
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}
