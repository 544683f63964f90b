//! Which records a sweep reads. Among many, each sweep goes on where the one before has stopped.
//!
//! A start takes as long beside ten thousand sandboxes as alone, so it lists only a part of their directory. The position is kept in a
//! file of the state root. With a wrong position, a sweep reads other records; nothing else depends on it.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;

use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};

use crate::id::Id;

/// The file with the position, seen from the directory of the records.
const POSITION: &str = "../swept";

/// A part of a directory.
struct Part {
    names: Vec<String>,
    /// Where the next part begins; `None` at the end of the directory.
    next: Option<u64>,
}

/// Returns the names of the records in this directory that it is the turn of, at most this number; `own` is skipped.
///
/// # Errors
/// When the directory cannot be read.
pub(crate) fn next_names(records: BorrowedFd<'_>, own: &str, most: usize) -> io::Result<Vec<String>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(records, ".", flags, Mode::empty())?;
    let mut part = read_part(&dir, own, most)?;
    if part.next.is_none() {
        return Ok(part.names);
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let position = rustix::fs::openat(records, POSITION, flags, Mode::RUSR | Mode::WUSR).map(File::from);
    // Without the file, every sweep reads the first part.
    let Ok(position) = position else { return Ok(part.names) };
    let mut kept = [0_u8; 8];
    let begin = position.read_exact_at(&mut kept, 0).map_or(0, |()| u64::from_ne_bytes(kept));
    if begin != 0 && rustix::fs::seek(&dir, SeekFrom::Start(begin)).is_ok() {
        part = read_part(&dir, own, most)?;
    }
    let _ = position.write_all_at(&part.next.unwrap_or(0).to_ne_bytes(), 0);
    Ok(part.names)
}

/// Reads a part of a directory, from where its descriptor stands.
fn read_part(dir: &OwnedFd, own: &str, most: usize) -> io::Result<Part> {
    let mut names = Vec::new();
    let mut buffer = Vec::with_capacity(4096);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_str().ok().filter(|name| Id::is_short(name) && *name != own);
        names.extend(name.map(str::to_owned));
        if names.len() >= most {
            return Ok(Part { names, next: Some(entry.next_entry_cookie()) });
        }
    }
    Ok(Part { names, next: None })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn every_record_has_its_turn_among_any_number() {
        for count in [0_u32, 3, 64, 65, 500] {
            let root = tempfile::tempdir().unwrap();
            let records = root.path().join("sandboxes");
            std::fs::create_dir(&records).unwrap();
            let made: BTreeSet<String> = (0..count).map(|number| format!("{number:012x}")).collect();
            for name in &made {
                std::fs::create_dir(records.join(name)).unwrap();
            }
            std::fs::create_dir(records.join("no record")).unwrap();
            let dir = File::open(&records).unwrap();
            let own = made.first().map_or("", String::as_str);
            let mut seen = BTreeSet::new();
            for _ in 0..=count / 64 + 1 {
                let names = next_names(dir.as_fd(), own, 64).unwrap();
                assert!(names.len() <= 64 && !names.iter().any(|name| name == own), "{count}");
                seen.extend(names);
            }
            assert_eq!(seen.len(), made.len().saturating_sub(1), "{count}");
            assert_eq!(root.path().join("swept").try_exists().unwrap(), count > 64, "{count}");
        }
    }

    #[test]
    fn a_damaged_position_hides_no_record_for_long() {
        let root = tempfile::tempdir().unwrap();
        let records = root.path().join("sandboxes");
        std::fs::create_dir(&records).unwrap();
        for number in 0..200 {
            std::fs::create_dir(records.join(format!("{number:012x}"))).unwrap();
        }
        for damage in [&b"x"[..], &[0xff; 8], &[0; 100]] {
            std::fs::write(root.path().join("swept"), damage).unwrap();
            let dir = File::open(&records).unwrap();
            let all = (0..6).flat_map(|_| next_names(dir.as_fd(), "", 64).unwrap()).collect::<BTreeSet<_>>();
            assert_eq!(all.len(), 200, "{damage:?}");
        }
    }
}
