//! `--on-stdin-close`.

use clap::ValueEnum;
use penfold_launch::checks::no_stdin_close;
use penfold_state::StdinClose;

use crate::failure::Failure;

/// The value of `--on-stdin-close`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnStdinClose {
    /// Wait for half of the grace, then stop the sandbox with the other half.
    Stop,
    /// Kill the sandbox.
    Kill,
}

impl From<OnStdinClose> for StdinClose {
    fn from(action: OnStdinClose) -> StdinClose {
        match action {
            OnStdinClose::Stop => StdinClose::Stop,
            OnStdinClose::Kill => StdinClose::Kill,
        }
    }
}

/// Refuses the flag for a sandbox on a server.
pub(crate) fn refuse(action: Option<StdinClose>) -> Result<(), Failure> {
    match action {
        None => Ok(()),
        Some(_) => Err(no_stdin_close("a sandbox on a server has none").into()),
    }
}
