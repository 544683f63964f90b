//! The command of a swept sandbox: a leader, a child, and a grandchild that has left group, session and parent.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use penfold_sys::ForkSide;

/// The exit code of a command that exits by itself.
pub(crate) const CODE: u8 = 7;
/// After this time the processes end by themselves, if everything else fails.
const LIFE: Duration = Duration::from_secs(50);
/// The largest number of its processes, including a leader that stays.
pub(crate) const SIZE: usize = 3;

/// The directory and the behaviour of the command.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Directory for the files NAME.ran (the command has begun) and NAME.done (the tree is complete)
    directory: PathBuf,
    /// Name of the command
    name: String,
    /// Make the leader stay, too
    #[arg(long)]
    stay: bool,
}

/// Tells whether the command with this name has begun.
pub(crate) fn has_run(directory: &Path, name: &str) -> bool {
    directory.join(format!("{name}.ran")).exists()
}

/// Tells whether the tree was complete.
pub(crate) fn has_stood(directory: &Path, name: &str) -> bool {
    directory.join(format!("{name}.done")).exists()
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> ExitCode {
    match grow(options) {
        Ok(()) if options.stay => stay(),
        Ok(()) => ExitCode::from(CODE),
        Err(_) => ExitCode::from(70),
    }
}

fn grow(options: &Options) -> io::Result<()> {
    let file = |end: &str| options.directory.join(format!("{}.{end}", options.name));
    fs::write(file("ran"), "")?;
    // A private directory that is empty is removed in one step.
    let private = std::env::temp_dir();
    if private.file_name().is_some_and(|name| name.to_string_lossy().starts_with("penfold-")) {
        fs::write(private.join("made"), "")?;
    }
    let (reader, writer) = io::pipe()?;
    if penfold_sys::fork()? == ForkSide::Child {
        drop(io::Write::write(&mut &writer, b"c"));
        stay();
    }
    if penfold_sys::fork()? == ForkSide::Child {
        let _ = rustix::process::setsid();
        if let Ok(ForkSide::Child) = penfold_sys::fork() {
            drop(io::Write::write(&mut &writer, b"g"));
            stay();
        }
        penfold_sys::fork::exit_now(0);
    }
    drop(writer);
    io::Read::read_exact(&mut &reader, &mut [0; 2])?;
    fs::write(file("done"), "")
}

fn stay() -> ! {
    sleep(LIFE);
    penfold_sys::fork::exit_now(0);
}
