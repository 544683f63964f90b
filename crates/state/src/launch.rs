//! What a detached sandbox was started with, kept in its record so that it can be started again.
//!
//! The file is private, like the record: it has the caller's environment. A restart moves it into the record of the next
//! life. Exactly one life of a sandbox therefore has the file, and of two restarts at once one finds it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use penfold_teardown::Cause;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::files::Files;
use crate::outcome::{ExitStatus, Report};

/// The name of the file.
const LAUNCH: &str = "launch";
/// The name of the file after a request to end the sandbox: only `penfold restart` starts the next life then.
const HELD: &str = "launch.held";
/// The first part of the file.
const FORMAT: &[u8] = b"penfold launch 1";
/// The largest file: the kernel limits words and variables together to less.
const LARGEST: u64 = 8 << 20;

/// What `penfold run -d` was started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The words of the command line after `penfold`.
    pub words: Vec<OsString>,
    /// The environment.
    pub environment: Vec<(OsString, OsString)>,
    /// The working directory.
    pub directory: PathBuf,
    /// The mask for the modes of new files.
    pub umask: u32,
}

impl Launch {
    /// Converts to the content of the file: parts that end with NUL, as in `/proc/<pid>/environ`.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(4096);
        let mut part = |text: &[&[u8]]| {
            bytes.extend(text.iter().copied().flatten());
            bytes.push(0);
        };
        part(&[FORMAT]);
        part(&[format!("{:o}", self.umask).as_bytes()]);
        part(&[self.directory.as_os_str().as_bytes()]);
        part(&[self.words.len().to_string().as_bytes()]);
        self.words.iter().for_each(|word| part(&[word.as_bytes()]));
        self.environment.iter().for_each(|(key, value)| part(&[key.as_bytes(), b"=", value.as_bytes()]));
        bytes
    }

    /// Converts from the content of the file; `None` if it is damaged.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Launch> {
        let mut parts = bytes.strip_suffix(&[0])?.split(|&byte| byte == 0);
        let text = |part: Option<&[u8]>| String::from_utf8(part?.to_vec()).ok();
        let owned = |part: &[u8]| OsString::from_vec(part.to_vec());
        if parts.next() != Some(FORMAT) {
            return None;
        }
        let umask = u32::from_str_radix(&text(parts.next())?, 8).ok()?;
        let directory = PathBuf::from(owned(parts.next()?));
        let count: usize = text(parts.next())?.parse().ok()?;
        let words: Vec<OsString> = parts.by_ref().take(count).map(owned).collect();
        let variable = |part: &[u8]| {
            let at = part.iter().skip(1).position(|&byte| byte == b'=')? + 1;
            let (key, value) = part.split_at_checked(at)?;
            Some((owned(key), owned(value.get(1..)?)))
        };
        let environment = parts.filter_map(variable).collect();
        (words.len() == count).then_some(Launch { words, environment, directory, umask })
    }

    /// Returns the value of a variable.
    #[must_use]
    pub fn variable(&self, key: &OsStr) -> Option<&OsStr> {
        self.environment.iter().find(|(other, _)| other == key).map(|(_, value)| value.as_os_str())
    }
}

/// Where a new record gets its launch file from.
#[derive(Debug)]
pub enum LaunchSource {
    /// It is written.
    New(Vec<u8>),
    /// It is moved from the record of the former life.
    Former {
        /// The record.
        files: Files,
        /// Whether somebody has asked for the restart: then a request to end the former life does not prevent it.
        is_requested: bool,
    },
}

/// Tells whether a sandbox has ended because its command failed by itself, and nothing of it is left.
#[must_use]
pub fn has_failed_by_itself(report: &Report) -> bool {
    is_own_failure(report) && report.findings.verified
}

/// Tells whether the command has failed by itself.
#[must_use]
pub fn is_own_failure(report: &Report) -> bool {
    match (report.cause, report.exit) {
        (Cause::Exit, Some(exit)) => exit != ExitStatus::Code(0),
        (Cause::Signal | Cause::Memory | Cause::Oom, _) => true,
        _ => false,
    }
}

impl Files {
    /// Gives a new record its launch file.
    ///
    /// # Errors
    /// When the file cannot be written; [`io::ErrorKind::NotFound`] when the former life has none any more.
    pub fn put_launch(&self, source: &LaunchSource) -> io::Result<()> {
        match source {
            LaunchSource::New(bytes) => self.write_launch(bytes),
            LaunchSource::Former { files, is_requested } => {
                let moved = match files.move_launch(LAUNCH, self, LAUNCH) {
                    Err(Errno::NOENT) if *is_requested => files.move_launch(HELD, self, LAUNCH),
                    moved => moved,
                };
                Ok(moved?)
            }
        }
    }

    fn move_launch(&self, from: &str, target: &Files, to: &str) -> rustix::io::Result<()> {
        rustix::fs::renameat(&self.dir, from, &target.dir, to)
    }

    fn write_launch(&self, bytes: &[u8]) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, LAUNCH, flags, Mode::RUSR | Mode::WUSR)?;
        File::from(file).write_all(bytes)
    }

    /// Gives the launch file of a life that did not start back to the former one, at this path.
    pub fn return_launch(&self, former: &Path) {
        let _ = rustix::fs::renameat(&self.dir, LAUNCH, rustix::fs::CWD, former.join(LAUNCH));
    }

    /// Keeps a sandbox that has ended from being restarted without a request. False if the next life has begun already.
    ///
    /// # Errors
    /// When the file cannot be renamed.
    pub fn hold_launch(&self) -> io::Result<bool> {
        match self.move_launch(LAUNCH, self, HELD) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(self.open_launch(HELD)?.is_some()),
            Err(error) => Err(error.into()),
        }
    }

    fn open_launch(&self, name: &str) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match rustix::fs::openat(&self.dir, name, flags, Mode::empty()) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Tells whether this is the life that the next one would start from.
    #[must_use]
    pub fn has_launch(&self) -> bool {
        [LAUNCH, HELD].into_iter().any(|name| matches!(self.open_launch(name), Ok(Some(_))))
    }

    /// Reads what the sandbox was started with; `None` if the record has no launch file.
    ///
    /// # Errors
    /// When the file is damaged or another user's.
    pub fn launch(&self) -> io::Result<Option<Launch>> {
        let file = match self.open_launch(LAUNCH)? {
            Some(file) => file,
            None => match self.open_launch(HELD)? {
                Some(file) => file,
                None => return Ok(None),
            },
        };
        if rustix::fs::fstat(&file)?.st_uid != rustix::process::geteuid().as_raw() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut bytes = Vec::new();
        File::from(file).take(LARGEST).read_to_end(&mut bytes)?;
        Launch::decode(&bytes).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch() -> Launch {
        let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        Launch {
            words: vec![text(b"run"), text(b"-d"), text(b""), text(b"\xff=\n")],
            environment: vec![
                (text(b"A"), text(b"")),
                (text(b"\xffB"), text(b"=x\n")),
                (text(b"=odd"), text(b"1")),
            ],
            directory: PathBuf::from("/a b"),
            umask: 0o27,
        }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        assert_eq!(Launch::decode(&launch().encode()), Some(launch()));
    }

    #[test]
    fn part_of_a_file_is_damaged() {
        let bytes = launch().encode();
        let words = bytes.len() - b"A=\0\xffB==x\n\0=odd=1\0".len();
        for end in 0..words {
            assert_eq!(Launch::decode(&bytes[..end]), None, "{end}");
        }
    }
}
