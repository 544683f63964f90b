//! Reads events line by line, across renames of the file, whatever the file holds.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, OFlags, Stat};
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

/// The place of a reader in the events: what the next entry is. Holds the file open, so that no other file gets its identity.
#[derive(Debug, Clone)]
pub struct EventPlace {
    file: Option<Arc<EventFile>>,
    offset: u64,
    skipping: bool,
}

impl PartialEq for EventPlace {
    fn eq(&self, other: &EventPlace) -> bool {
        let file = |place: &EventPlace| place.file.as_ref().map(|file| file.identity());
        (file(self), self.offset, self.skipping) == (file(other), other.offset, other.skipping)
    }
}

impl Eq for EventPlace {}

/// A reader of events: holds one buffer, takes no lock.
#[derive(Debug)]
pub struct EventReader {
    pub(super) root: PathBuf,
    pub(super) watch: Option<RootWatch>,
    file: Option<Arc<EventFile>>,
    /// The last two files that were open: places share their descriptors.
    known: [Option<Arc<EventFile>>; 2],
    /// Where the next bytes are in the file.
    offset: u64,
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
}

impl EventFile {
    /// Device and inode.
    fn identity(&self) -> (u64, u64) {
        (self.stat.st_dev, self.stat.st_ino)
    }
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
            known: [None, None],
            offset: 0,
            buffer: vec![0; BUFFER],
            begin: 0,
            end: 0,
            skipping: false,
        };
        if from == EventPosition::End {
            reader.file = reader.open_named(CURRENT)?;
            if let Some(file) = &reader.file {
                let size = rustix::fs::fstat(&file.fd).map_err(reading(root))?.st_size;
                // The last line may be half written.
                reader.offset = u64::try_from(size).unwrap_or(0).saturating_sub(1);
                reader.skipping = size > 0;
            }
        }
        Ok(reader)
    }

    /// Returns the place of the next entry.
    pub fn place(&self) -> EventPlace {
        let unread = u64::try_from(self.end - self.begin).unwrap_or(0);
        EventPlace {
            file: self.file.clone(),
            offset: self.offset.saturating_sub(unread),
            skipping: self.skipping,
        }
    }

    /// Goes to a place of this reader, or of another one of the same state root.
    pub fn go_to_place(&mut self, place: EventPlace) {
        if place != self.place() {
            self.file = place.file.map(|file| self.shared(file));
            (self.offset, self.skipping) = (place.offset, place.skipping);
            (self.begin, self.end) = (0, 0);
        }
    }

    /// Returns the descriptor that other places have of this file: many followers then take no more descriptors than one.
    fn shared(&mut self, file: Arc<EventFile>) -> Arc<EventFile> {
        let is_same = |known: &&Arc<EventFile>| known.identity() == file.identity();
        if let Some(known) = self.known.iter().flatten().find(is_same) {
            return Arc::clone(known);
        }
        self.known.rotate_right(1);
        self.known[0] = Some(Arc::clone(&file));
        file
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
            self.file = Some(self.shared(next));
            let cut_off = self.begin < self.end && !self.skipping;
            self.offset = 0;
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
        let Some(file) = &self.file else { return Ok(false) };
        self.buffer.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        let count = rustix::io::retry_on_intr(|| rustix::io::pread(&file.fd, &mut *room, self.offset))
            .map_err(reading(&self.root))?;
        self.end += count;
        self.offset += u64::try_from(count).unwrap_or(0);
        if count > 0 {
            return Ok(true);
        }
        let size = rustix::fs::fstat(&file.fd).map_err(reading(&self.root))?.st_size;
        if u64::try_from(size).unwrap_or(0) < self.offset {
            // Another process has emptied the file.
            self.offset = 0;
            (self.begin, self.end, self.skipping) = (0, 0, false);
            return Ok(size > 0);
        }
        Ok(false)
    }

    /// Opens the next file, if there is one: the previous file, or the current file if the previous one is already
    /// open.
    fn next_file(&mut self) -> Result<Option<Arc<EventFile>>, StateError> {
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
        self.file.as_ref().is_some_and(|file| file.identity() == other.identity())
    }

    fn open_named(&self, name: &str) -> Result<Option<Arc<EventFile>>, StateError> {
        let Some(dir) = open_dir(&self.root)? else { return Ok(None) };
        match open_plain(dir.as_fd(), name, OFlags::RDONLY) {
            Ok((fd, stat)) => Ok(Some(Arc::new(EventFile { fd, stat }))),
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
