//! `--on-stdin-close`: whether the standard input can hang up.

use std::os::fd::AsFd as _;

use clap::ValueEnum;
use penfold_state::StdinClose;
use rustix::fs::{FileType, fstat};
use rustix::termios::isatty;

use crate::failure::{Failure, FailureKind};

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

/// Refuses the flag if the standard input can never hang up, such as a file. The flag would have no effect.
pub(super) fn check(action: Option<OnStdinClose>) -> Result<(), Failure> {
    if action.is_none() {
        return Ok(());
    }
    let stdin = std::io::stdin();
    let stdin = stdin.as_fd();
    let Ok(stat) = fstat(stdin) else { return Err(refused("it is closed")) };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Fifo | FileType::Socket => Ok(()),
        FileType::CharacterDevice if isatty(stdin) => Ok(()),
        FileType::RegularFile => Err(refused("it is a file, which never hangs up")),
        FileType::CharacterDevice => Err(refused("it is a device such as `/dev/null`, which never hangs up")),
        _ => Err(refused("it is no pipe, socket or terminal")),
    }
}

/// Refuses the flag for a sandbox on a server.
pub(crate) fn refuse(action: Option<OnStdinClose>) -> Result<(), Failure> {
    match action {
        None => Ok(()),
        Some(_) => Err(refused("a sandbox on a server has none")),
    }
}

fn refused(reason: &str) -> Failure {
    Failure::new(FailureKind::NotStarted, "cannot watch the standard input for `--on-stdin-close`")
        .because(reason)
        .hint("leave out the flag, or give penfold a pipe")
}
