//! Reads events line by line, across renames of the file, whatever the file holds.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::Event;
use super::root_watch::RootWatch;
use super::store::{BEFORE, CURRENT, is_called, open_plain};
use crate::json::SCHEMA;
use crate::record::{StateError, open_private};

/// Longer than any line that penfold writes.
const BUFFER: usize = 64 << 10;
/// The number of tries to open the next file while a writer renames it.
const TRIES: u32 = 32;

/// The place where reading begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventPosition {
    /// At the oldest event that is kept.
    Start,
    /// After the newest event.
    End,
}

/// An item that a reader returns.
#[derive(Debug, PartialEq, Eq)]
pub enum EventEntry {
    /// An event.
    Event(Box<Event>),
    /// A line that is no event, or an event of a kind or format unknown to this version.
    Skipped,
}

/// A reader of events: holds one buffer, takes no lock.
#[derive(Debug)]
pub struct EventReader {
    pub(super) root: PathBuf,
    pub(super) watch: Option<RootWatch>,
    file: Option<EventFile>,
    buffer: Vec<u8>,
    /// The unread part of the buffer.
    begin: usize,
    end: usize,
    /// Whether to discard everything up to the next line feed.
    skipping: bool,
}

#[derive(Debug)]
struct EventFile {
    fd: OwnedFd,
    stat: Stat,
    offset: u64,
}

impl EventReader {
    /// Opens the events of a state root. Neither the events nor the root need exist yet.
    ///
    /// # Errors
    /// When the events cannot be read, belong to another user, or are no plain file.
    pub fn open(root: &Path, from: EventPosition) -> Result<EventReader, StateError> {
        let mut reader = EventReader {
            root: root.to_owned(),
            watch: None,
            file: None,
            buffer: vec![0; BUFFER],
            begin: 0,
            end: 0,
            skipping: false,
        };
        if from == EventPosition::End {
            reader.file = reader.open_named(CURRENT)?;
            if let Some(EventFile { fd, offset, .. }) = &mut reader.file {
                let size = rustix::fs::seek(&*fd, SeekFrom::End(0)).map_err(reading(root))?;
                // The last line may be half written.
                *offset = size.saturating_sub(1);
                rustix::fs::seek(&*fd, SeekFrom::Start(*offset)).map_err(reading(root))?;
                reader.skipping = size > 0;
            }
        }
        Ok(reader)
    }

    /// Returns the next event, if there is one yet.
    ///
    /// # Errors
    /// When the events cannot be read.
    pub fn next_entry(&mut self) -> Result<Option<EventEntry>, StateError> {
        loop {
            if let Some(entry) = self.take_line() {
                return Ok(Some(entry));
            }
            if self.fill()? {
                continue;
            }
            let Some(next) = self.next_file()? else { return Ok(None) };
            // A writer may have added events after the last read and before the rename.
            if self.fill()? {
                continue;
            }
            self.file = Some(next);
            let cut_off = self.begin < self.end && !self.skipping;
            (self.begin, self.end, self.skipping) = (0, 0, false);
            if cut_off {
                return Ok(Some(EventEntry::Skipped));
            }
        }
    }

    /// Takes a line out of the buffer, if there is a whole one.
    fn take_line(&mut self) -> Option<EventEntry> {
        loop {
            let rest = self.buffer.get(self.begin..self.end).unwrap_or_default();
            let Some(length) = rest.iter().position(|&byte| byte == b'\n') else {
                if self.skipping || rest.len() == BUFFER {
                    let longer = !std::mem::replace(&mut self.skipping, true);
                    self.begin = self.end;
                    return longer.then_some(EventEntry::Skipped);
                }
                return None;
            };
            let line = rest.get(..length).unwrap_or_default();
            let entry = if line.is_empty() || self.skipping { None } else { Some(parse(line)) };
            self.begin += length + 1;
            self.skipping = false;
            if entry.is_some() {
                return entry;
            }
        }
    }

    /// Reads more of the open file; false at its end.
    fn fill(&mut self) -> Result<bool, StateError> {
        let Some(file) = &mut self.file else { return Ok(false) };
        self.buffer.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        let count = rustix::io::retry_on_intr(|| rustix::io::read(&file.fd, &mut *room))
            .map_err(reading(&self.root))?;
        self.end += count;
        file.offset += u64::try_from(count).unwrap_or(0);
        if count > 0 {
            return Ok(true);
        }
        let size = rustix::fs::fstat(&file.fd).map_err(reading(&self.root))?.st_size;
        if u64::try_from(size).unwrap_or(0) < file.offset {
            // Another process has emptied the file.
            rustix::fs::seek(&file.fd, SeekFrom::Start(0)).map_err(reading(&self.root))?;
            file.offset = 0;
            (self.begin, self.end, self.skipping) = (0, 0, false);
            return Ok(size > 0);
        }
        Ok(false)
    }

    /// Opens the next file, if there is one: the previous file, or the current file if the previous one is already
    /// open.
    fn next_file(&mut self) -> Result<Option<EventFile>, StateError> {
        for _ in 0..TRIES {
            let Some(current) = self.open_named(CURRENT)? else { break };
            if self.is_open(&current) {
                return Ok(None);
            }
            let before = self.open_named(BEFORE)?.filter(|before| !self.is_open(before));
            // A writer may have renamed the file between the two lookups.
            let settled =
                open_dir(&self.root)?.is_some_and(|dir| is_called(dir.as_fd(), CURRENT, &current.stat));
            if settled {
                return Ok(Some(before.unwrap_or(current)));
            }
        }
        Ok(None)
    }

    fn is_open(&self, other: &EventFile) -> bool {
        let same =
            |file: &EventFile| (file.stat.st_dev, file.stat.st_ino) == (other.stat.st_dev, other.stat.st_ino);
        self.file.as_ref().is_some_and(same)
    }

    fn open_named(&self, name: &str) -> Result<Option<EventFile>, StateError> {
        let Some(dir) = open_dir(&self.root)? else { return Ok(None) };
        match open_plain(dir.as_fd(), name, OFlags::RDONLY) {
            Ok((fd, stat)) => Ok(Some(EventFile { fd, stat, offset: 0 })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => {
                Err(StateError::Io { act: "open", path: self.root.join(name), source: errno.into() })
            }
        }
    }
}

fn parse(line: &[u8]) -> EventEntry {
    match serde_json::from_slice::<Event>(line) {
        Ok(event) if event.schema <= SCHEMA => EventEntry::Event(Box::new(event)),
        _ => EventEntry::Skipped,
    }
}

fn open_dir(root: &Path) -> Result<Option<OwnedFd>, StateError> {
    match open_private(CWD, root) {
        Ok(dir) => Ok(Some(dir)),
        Err(StateError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn reading(root: &Path) -> impl FnOnce(Errno) -> StateError + use<'_> {
    |errno| StateError::Io { act: "read", path: root.join(CURRENT), source: errno.into() }
}
