//! What goes before the start of an exec, and after one that failed.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use penfold_control::execs;
use penfold_control::execs::KEPT;
use penfold_state::{Files, RecordedExec};
use rustix::fs::{MemfdFlags, SealFlags};

/// Removes the records of the oldest ended execs of a sandbox, beyond those that are kept, and returns what was removed.
/// A failure is logged: the sandbox has more records then.
pub fn make_room(files: &Files) -> Vec<RecordedExec> {
    execs::forget_oldest(files, KEPT).unwrap_or_else(|error| {
        tracing::warn!(sandbox = files.name(), %error, "cannot remove the records of ended execs");
        Vec::new()
    })
}

/// Puts the input of a command into memory that nobody can change; the command reads it as a file.
///
/// # Errors
/// When there is no memory or no descriptor.
pub fn input_file(input: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create(c"penfold-input", flags)?);
    file.write_all(input)?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    // Its own open file, at the beginning and only for reading.
    Ok(File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?.into())
}

/// Removes the record of a command that did not run, once its supervisor is gone; waits for that for at most `limit`.
pub fn discard_exec(files: &Files, number: u32, limit: Duration) {
    let ended = execs::wait_for_exec(files, number, Instant::now().checked_add(limit));
    if matches!(ended, Ok(Some(_))) {
        let _ = execs::remove_exec_record(files, number);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn input_is_read_from_its_beginning_and_never_written() {
        let mut file = File::from(input_file(b"abc").unwrap());
        assert!(file.write_all(b"x").is_err());
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "abc");
    }
}
