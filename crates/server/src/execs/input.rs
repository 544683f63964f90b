//! The open input of an exec, into which clients write while its command runs.

use std::io;

use penfold_control::execs;
use penfold_state::{Files, error_chain};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe::Sender;

use crate::engine::{Engine, EngineError};

/// Why input was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteInputError {
    /// The exec was started without an open input, or nobody reads it any more.
    #[error("exec {number} has no open input, or its input has ended")]
    Closed {
        /// The number of the exec.
        number: u32,
    },
    /// The input cannot be opened or written.
    #[error("cannot write the input of exec {number}: {}", error_chain(source))]
    Io {
        /// The number of the exec.
        number: u32,
        /// The cause.
        source: io::Error,
    },
    /// The work was abandoned.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Writes bytes into the open input of an exec, and waits while its command does not read. The input is open only for that time: then it
/// can be ended by any client.
///
/// # Errors
/// A part may have been written.
pub async fn write_input(
    engine: &Engine,
    files: &Files,
    number: u32,
    bytes: &[u8],
) -> Result<(), WriteInputError> {
    let failed = |source: io::Error| WriteInputError::Io { number, source };
    let record = files.clone();
    let opened = engine.call(move |_| execs::open_exec_input(&record, number)).await?.map_err(failed)?;
    let input = opened.ok_or(WriteInputError::Closed { number })?;
    let mut input = Sender::from_owned_fd(input).map_err(failed)?;
    let written = input.write_all(bytes).await;
    penfold_sys::crash_point!("serve-input-written");
    written.map_err(|error| {
        if error.kind() == io::ErrorKind::BrokenPipe {
            WriteInputError::Closed { number }
        } else {
            failed(error)
        }
    })
}
