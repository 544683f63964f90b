//! Writes events: one line each to the end of a file, which is renamed when full.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{Event, EventKind, EventSubject};
use crate::lock::pause_for_lock;
use crate::outcome::{cut_command, cut_labels, cut_text};
use crate::record::open_private;

/// The file that receives events.
pub(super) const CURRENT: &str = "events.jsonl";
/// The previous file.
pub(super) const BEFORE: &str = "events.jsonl.1";
/// The size from which a file is renamed.
pub(super) const FULL: u64 = 8 << 20;
/// The size from which a file is renamed even if a stopped writer holds it.
const OVERFULL: u64 = 2 * FULL;
/// The longest line.
pub(super) const LONGEST: usize = 4096;
/// The number of tries to open a file while another writer renames it, which takes microseconds.
const TRIES: u32 = 32;

/// Adds events to those of a state root, with one write(2) each.
///
/// # Errors
/// Events that were not written are lost: no writer waits for room.
pub fn append_events(root: &Path, events: &[Event]) -> io::Result<()> {
    let dir = open_private(CWD, root).map_err(io::Error::other)?;
    let (file, size) = current(dir.as_fd())?;
    let mut line = Vec::with_capacity(512);
    if !ends_a_line(&file, size) {
        // The previous writer had no room for its whole line.
        line.push(b'\n');
    }
    for event in events {
        write_line(event, &mut line)?;
        if rustix::io::retry_on_intr(|| rustix::io::write(&file, &line))? != line.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        line.clear();
    }
    Ok(())
}

/// Opens the file to write to, and returns its size.
///
/// A lock protects the file from renames while it is held: two renames could otherwise discard it during the write. A
/// writer that is stopped does not prevent the rename for ever.
fn current(dir: BorrowedFd<'_>) -> io::Result<(OwnedFd, u64)> {
    let mut tries = 0;
    loop {
        tries += 1;
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE;
        let (file, stat) = open_plain(dir, CURRENT, flags)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if size >= FULL && tries < TRIES {
            let alone = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
            // Another writer may have renamed the file already.
            if (alone || size >= OVERFULL) && is_called(dir, CURRENT, &stat) {
                rustix::fs::renameat(dir, CURRENT, dir, BEFORE)?;
            }
            // Waiting writers do not take the lock meanwhile. Otherwise many of them could prevent the rename.
            pause_for_lock(tries);
            continue;
        }
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) if tries < TRIES => pause_for_lock(tries),
            Ok(()) if tries < TRIES && !is_called(dir, CURRENT, &stat) => {}
            _ => return Ok((file, size)),
        }
    }
}

/// Opens a plain file of this user: no link, pipe or device.
///
/// # Errors
/// When the file does not exist, or is something else.
pub(crate) fn open_plain(
    dir: BorrowedFd<'_>,
    name: &str,
    flags: OFlags,
) -> rustix::io::Result<(OwnedFd, Stat)> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?;
    let stat = rustix::fs::fstat(&file)?;
    let is_plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !is_plain || stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::PERM);
    }
    Ok((file, stat))
}

/// Tells whether a file has this name now.
pub(super) fn is_called(dir: BorrowedFd<'_>, name: &str, stat: &Stat) -> bool {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|named| (named.st_dev, named.st_ino) == (stat.st_dev, stat.st_ino))
}

pub(super) fn ends_a_line(file: &OwnedFd, size: u64) -> bool {
    let mut last = [b'\n'];
    match size.checked_sub(1) {
        Some(at) => rustix::io::pread(file, &mut last, at).is_ok() && last == [b'\n'],
        None => true,
    }
}

/// Adds an event as a line, with its texts shortened to fit. Returns the event as written.
pub(super) fn write_line(event: &Event, line: &mut Vec<u8>) -> io::Result<Event> {
    let begin = line.len();
    for most in [1024, 256, 32, 0] {
        let mut short = event.clone();
        shorten(&mut short, most);
        serde_json::to_writer(&mut *line, &short)?;
        line.push(b'\n');
        if line.len() <= LONGEST {
            return Ok(short);
        }
        line.truncate(begin);
    }
    Err(io::ErrorKind::InvalidInput.into())
}

/// Cuts each text to at most this many bytes.
fn shorten(event: &mut Event, most: usize) {
    let EventSubject { name, labels, .. } = &mut event.about;
    if let Some(text) = name {
        cut_text(text, most);
    }
    cut_labels(labels, most);
    match &mut event.what {
        EventKind::Start { command, .. }
        | EventKind::Exec { command, .. }
        | EventKind::Adopted { command, .. } => {
            cut_command(command, most);
        }
        EventKind::TeardownStep { step, error, .. } => {
            [step].into_iter().chain(error).for_each(|text| cut_text(text, most));
        }
        EventKind::RmdirBusy { path: text, .. } | EventKind::NoRestart { reason: text } => {
            cut_text(text, most);
        }
        EventKind::Leak { what, outcome, reason } => {
            [what, outcome].into_iter().chain(reason).for_each(|text| cut_text(text, most));
        }
        EventKind::Stop { by, .. } | EventKind::Lost { by, .. } => {
            if let Some(command) = by.as_mut().and_then(|by| by.command.as_mut()) {
                cut_text(command, most);
            }
        }
        EventKind::Exit { .. } => {}
    }
}
