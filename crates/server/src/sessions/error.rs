//! Why a request about a session failed.

use std::io;

use penfold_control::SupervisorClientError as SupervisorError;
use penfold_control::{execs::ExecError, has_just_ended};
use penfold_session::SessionClientError;
use penfold_state::Files;
use penfold_teardown::Survivor;

use crate::engine::EngineError;
use crate::records::RecordError;

/// Why a request about a session failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The server cannot work now.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// There is no such sandbox, or it has no record.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// What the sandbox was started with cannot be read.
    #[error("cannot read the record")]
    UnreadableRecord(#[source] io::Error),
    /// The records of the execs cannot be read.
    #[error("cannot read the execs")]
    UnreadableExecs(#[source] io::Error),
    /// The sandbox has ended.
    #[error("sandbox {id} has ended")]
    HasEnded {
        /// The id of the sandbox.
        id: String,
    },
    /// There is a session with this name.
    #[error("exec {holder} holds a session with this name")]
    Exists {
        /// The number of the exec that holds it.
        holder: u32,
    },
    /// Another host of this name was first, or this one cannot start its shell: what it said.
    #[error("{0}")]
    NotAlone(String),
    /// The host did not start: the error, and what it said.
    #[error("{0}")]
    NotStarted(String),
    /// There is no session with this name.
    #[error("there is no session `{name}`")]
    Missing {
        /// The name.
        name: String,
    },
    /// A request about the exec that holds the session failed.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// A request to the host failed.
    #[error(transparent)]
    Client(#[from] SessionClientError),
    /// These survived the end of the session.
    #[error("something of session `{name}` is left")]
    Left {
        /// The name.
        name: String,
        /// The processes and resources.
        survivors: Vec<Survivor>,
    },
}

impl SessionError {
    /// A request to a sandbox failed. If the sandbox has ended meanwhile, that is the reason.
    pub(super) fn beside_end(self, files: &Files) -> SessionError {
        let is_told = matches!(&self, SessionError::Exec(ExecError::Client(SupervisorError::Ended { .. })));
        if !is_told && has_just_ended(files) {
            SessionError::HasEnded { id: files.name().to_owned() }
        } else {
            self
        }
    }
}
