//! What a detached sandbox was started with, kept in its record so that it can be started again.
//!
//! The file is private, like the record: it has the caller's environment. Its name decides between an end and the next life: a
//! stop and a start both rename it, and only one of them finds it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use penfold_teardown::Cause;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::inotify::WatchFlags;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::change_watch::ChangeWatch;
use crate::files::Files;
use crate::lock;
use crate::outcome::{ExitStatus, Report};
use crate::record::Record;

/// The name of the file.
const LAUNCH: &str = "launch";
/// The name of the file after a request to end the sandbox: only `penfold restart` starts the next life then.
const HELD: &str = "launch.held";
/// The name of the file while the next life begins.
const NEXT: &str = "launch.next";
/// The first part of the file: of one with a request, and of one with the words of a command line, as earlier versions wrote it.
const FORMAT: &[u8] = b"penfold launch 2";
const FORMAT_OF_WORDS: &[u8] = b"penfold launch 1";
/// The interval of looks where the kernel notifies of no changes.
const BLIND: Duration = Duration::from_millis(50);
/// The largest file: the kernel limits words and variables together to less.
const LARGEST: u64 = 8 << 20;

/// What `penfold run -d` was started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// What was asked for.
    pub request: KeptRequest,
    /// The environment.
    pub environment: Vec<(OsString, OsString)>,
    /// The working directory; empty if it had been removed.
    pub directory: PathBuf,
    /// The mask for the modes of new files.
    pub umask: u32,
}

/// What a sandbox was asked for, as its launch file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeptRequest {
    /// The JSON of a request.
    Request(Vec<u8>),
    /// The words of the command line after `penfold`, which earlier versions kept.
    Words(Vec<OsString>),
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
        part(&[match &self.request {
            KeptRequest::Request(_) => FORMAT,
            KeptRequest::Words(_) => FORMAT_OF_WORDS,
        }]);
        part(&[format!("{:o}", self.umask).as_bytes()]);
        part(&[self.directory.as_os_str().as_bytes()]);
        match &self.request {
            KeptRequest::Request(text) => part(&[text]),
            KeptRequest::Words(words) => {
                part(&[words.len().to_string().as_bytes()]);
                for word in words {
                    part(&[word.as_bytes()]);
                }
            }
        }
        self.environment.iter().for_each(|(key, value)| part(&[key.as_bytes(), b"=", value.as_bytes()]));
        bytes
    }

    /// Converts from the content of the file; `None` if it is damaged.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Launch> {
        let mut parts = bytes.strip_suffix(&[0])?.split(|&byte| byte == 0);
        let text = |part: Option<&[u8]>| String::from_utf8(part?.to_vec()).ok();
        let owned = |part: &[u8]| OsString::from_vec(part.to_vec());
        let has_words = match parts.next()? {
            FORMAT => false,
            FORMAT_OF_WORDS => true,
            _ => return None,
        };
        let umask = u32::from_str_radix(&text(parts.next())?, 8).ok()?;
        let directory = PathBuf::from(owned(parts.next()?));
        let request = if has_words {
            let count: usize = text(parts.next())?.parse().ok()?;
            let words: Vec<OsString> = parts.by_ref().take(count).map(owned).collect();
            Some(words).filter(|words| words.len() == count).map(KeptRequest::Words)
        } else {
            parts.next().map(|text| KeptRequest::Request(text.to_vec()))
        };
        let variable = |part: &[u8]| {
            let at = part.iter().skip(1).position(|&byte| byte == b'=')? + 1;
            let (key, value) = part.split_at_checked(at)?;
            Some((owned(key), owned(value.get(1..)?)))
        };
        let environment = parts.filter_map(variable).collect();
        Some(Launch { request: request?, environment, directory, umask })
    }

    /// Returns the reason why no process can start in the working directory; `None` if one can, as far as this process sees.
    #[must_use]
    pub fn missing_directory(&self) -> Option<String> {
        if self.directory.as_os_str().is_empty() {
            return Some("it was started in a directory that had been removed".to_owned());
        }
        let found = rustix::fs::stat(&self.directory).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let shown = self.directory.display();
        match found {
            Ok(FileType::Directory) => None,
            Ok(_) => Some(format!("`{shown}`, where it was started, is no directory any more")),
            Err(Errno::NOENT | Errno::NOTDIR) => {
                Some(format!("the directory `{shown}`, where it was started, does not exist any more"))
            }
            Err(_) => None,
        }
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
    /// The record of the former life has it, and becomes that of the next one.
    Former {
        /// The record.
        record: Record,
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
    fn rename_launch(&self, from: &str, to: &str) -> rustix::io::Result<()> {
        rustix::fs::renameat(&self.dir, from, &self.dir, to)
    }

    /// Takes the launch file for the next life. Without a request, a stop that came first prevents it.
    pub(crate) fn take_launch(&self, is_requested: bool) -> io::Result<()> {
        match self.rename_launch(LAUNCH, NEXT) {
            Err(Errno::NOENT) if is_requested => match self.rename_launch(HELD, NEXT) {
                // A start that was killed has left it.
                Err(Errno::NOENT) if self.has_file(NEXT) => Ok(()),
                taken => Ok(taken?),
            },
            taken => Ok(taken?),
        }
    }

    /// Gives the launch file its usual name, once the next life has begun or could not begin.
    pub(crate) fn return_launch(&self) {
        let _ = self.rename_launch(NEXT, LAUNCH);
    }

    fn has_file(&self, name: &str) -> bool {
        rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Tells whether a next life may begin without a request.
    pub(crate) fn is_launch_free(&self) -> bool {
        self.has_file(LAUNCH)
    }

    /// Tells whether a next life begins, or was killed while it began.
    pub(crate) fn is_launch_taken(&self) -> bool {
        self.has_file(NEXT)
    }

    /// Waits until this time; false as soon as a request has ended the sandbox for good.
    pub fn await_start(&self, until: Instant) -> bool {
        let flags = WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::DELETE_SELF;
        let watch = ChangeWatch::on(&self.path, flags);
        loop {
            if let Some(watch) = &watch {
                watch.clear();
            }
            if !self.is_launch_free() {
                return false;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            let left = if watch.is_some() { left } else { left.min(BLIND) };
            let mut fds: Vec<PollFd<'_>> =
                watch.iter().map(|watch| PollFd::new(watch, PollFlags::IN)).collect();
            let _ = rustix::event::poll(&mut fds, Timespec::try_from(left).ok().as_ref());
        }
    }

    /// Locks the launch file for a restart on request; `None` while another command restarts the sandbox.
    ///
    /// # Errors
    /// When the file cannot be opened or locked; [`io::ErrorKind::NotFound`] if there is none.
    pub fn lock_launch(&self) -> io::Result<Option<OwnedFd>> {
        let file = self.find_launch()?.ok_or(io::ErrorKind::NotFound)?;
        Ok(lock::hold_lock(&file)?.then_some(file))
    }

    /// Tells whether a command restarts the sandbox now.
    pub(crate) fn is_being_restarted(&self) -> bool {
        self.find_launch().ok().flatten().is_some_and(|file| {
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
        })
    }

    fn find_launch(&self) -> io::Result<Option<OwnedFd>> {
        // In the order in which a life that begins renames it.
        for name in [HELD, LAUNCH, NEXT, LAUNCH, HELD] {
            if let Some(file) = self.open_launch(name)? {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }

    /// Writes the launch file of a first life.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put_launch(&self, bytes: &[u8]) -> io::Result<()> {
        self.write_launch(bytes)
    }

    fn write_launch(&self, bytes: &[u8]) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, LAUNCH, flags, Mode::RUSR | Mode::WUSR)?;
        File::from(file).write_all(bytes)
    }

    /// Keeps a sandbox that has ended from being restarted without a request. False if the next life begins.
    ///
    /// # Errors
    /// When the file cannot be renamed.
    pub fn hold_launch(&self) -> io::Result<bool> {
        for from in [LAUNCH, NEXT] {
            // The file is taken by a life that begins, unless its starter was killed.
            if from == NEXT && self.lock().may_be_held() {
                break;
            }
            match self.rename_launch(from, HELD) {
                Ok(()) => return Ok(true),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.has_file(HELD))
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
        matches!(self.find_launch(), Ok(Some(_)))
    }

    /// Reads what the sandbox was started with; `None` if the record has no launch file.
    ///
    /// # Errors
    /// When the file is damaged or another user's.
    pub fn launch(&self) -> io::Result<Option<Launch>> {
        let Some(file) = self.find_launch()? else { return Ok(None) };
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

    fn text(bytes: &[u8]) -> OsString {
        OsString::from_vec(bytes.to_vec())
    }

    fn launches() -> [Launch; 2] {
        let words = vec![text(b"run"), text(b"-d"), text(b""), text(b"\xff=\n")];
        [KeptRequest::Words(words), KeptRequest::Request(b"{\"spec\":{}}".to_vec())].map(launch)
    }

    fn launch(request: KeptRequest) -> Launch {
        Launch {
            request,
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
        for launch in launches() {
            assert_eq!(Launch::decode(&launch.encode()), Some(launch));
        }
    }

    #[test]
    fn part_of_a_file_is_damaged() {
        for launch in launches() {
            let bytes = launch.encode();
            let request = bytes.len() - b"A=\0\xffB==x\n\0=odd=1\0".len();
            for end in 0..request {
                assert_eq!(Launch::decode(&bytes[..end]), None, "{end}");
            }
        }
    }
}
