//! The file of the counters.
//!
//! A line `penfold counters 1 SUM`, a line `KEY NUMBER` for each counter, and empty lines up to the size of a page. Keys of a
//! newer penfold are kept.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::events::open_plain;
use crate::fnv::fnv_hash;
use crate::lock::pause_for_lock;
use crate::record::{StateError, open_private};

/// The name of the file in a state root.
pub(super) const NAME: &str = "counters";
/// The size of the file. One page is written as a whole: the kernel interrupts no copy into a page.
const SIZE: usize = 4096;
/// The words before the checksum: the name of the format and its version.
const TITLE: &str = "penfold counters 1 ";
/// The key that counts damaged files.
pub(super) const DAMAGED: &str = "damaged";
/// The time that a writer waits for the lock. The lock is held for microseconds, unless its holder is stopped.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);

/// The numbers of the counters of a state root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    pub(super) numbers: BTreeMap<String, u64>,
    /// Whether the file is damaged. The numbers are then zero.
    pub is_damaged: bool,
}

/// Reads the counters of a state root. Without a root, or before the first count, all are zero.
///
/// # Errors
/// When the file cannot be read, belongs to another user, or is no plain file.
pub fn read_counters(root: &Path) -> Result<Counters, StateError> {
    let dir = match open_private(CWD, root) {
        Ok(dir) => dir,
        Err(StateError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(Counters::default());
        }
        Err(error) => return Err(error),
    };
    let failed = |act| move |source| StateError::Io { act, path: root.join(NAME), source };
    let file = match open_plain(dir.as_fd(), NAME, OFlags::RDONLY) {
        Ok((file, _)) => file,
        Err(Errno::NOENT) => return Ok(Counters::default()),
        Err(errno) => return Err(failed("open")(errno.into())),
    };
    // Without the lock, half a write could be seen. A holder that is stopped is not waited for: it writes nothing.
    let _ = lock(&file, FlockOperation::NonBlockingLockShared);
    let text = contents(&file).map_err(|errno| failed("read")(errno.into()))?;
    Ok(match parse(&text) {
        Some(numbers) => Counters { numbers, is_damaged: false },
        None => Counters { is_damaged: true, ..Counters::default() },
    })
}

/// Adds to the counters of a state root.
pub(super) fn add_counters(root: &Path, counts: &BTreeMap<String, u64>) -> io::Result<()> {
    let dir = open_private(CWD, root).map_err(io::Error::other)?;
    let (file, _) = open_plain(dir.as_fd(), NAME, OFlags::RDWR | OFlags::CREATE)?;
    lock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let before = contents(&file)?;
    let mut numbers = parse(&before).unwrap_or_else(|| BTreeMap::from([(DAMAGED.to_owned(), 1)]));
    for (key, number) in counts {
        let sum = numbers.entry(key.clone()).or_default();
        *sum = sum.saturating_add(*number);
    }
    let text = counters_text(&numbers).ok_or(io::ErrorKind::FileTooLarge)?;
    if before.len() > SIZE {
        rustix::fs::ftruncate(&file, u64::try_from(SIZE).unwrap_or(0))?;
    }
    let written = retry_on_intr(|| rustix::io::pwrite(&file, text.as_bytes(), 0));
    if written == Ok(text.len()) {
        return Ok(());
    }
    if before.is_empty() {
        // The disk is full. An empty file is whole.
        let _ = rustix::fs::ftruncate(&file, 0);
    }
    Err(written.map_or_else(io::Error::from, |_| io::ErrorKind::StorageFull.into()))
}

fn lock(file: &OwnedFd, operation: FlockOperation) -> io::Result<()> {
    let begun = Instant::now();
    let mut tries = 0;
    loop {
        match rustix::fs::flock(file, operation) {
            Err(Errno::WOULDBLOCK | Errno::INTR) if begun.elapsed() < LOCK_TIMEOUT => pause_for_lock(tries),
            other => return Ok(other?),
        }
        tries = tries.saturating_add(1);
    }
}

/// Reads the file, and a byte more than a whole file has.
fn contents(file: &OwnedFd) -> rustix::io::Result<Vec<u8>> {
    let mut text = vec![0; SIZE + 1];
    let mut end = 0;
    loop {
        let room = text.get_mut(end..).unwrap_or_default();
        let at = u64::try_from(end).unwrap_or(u64::MAX);
        match retry_on_intr(|| rustix::io::pread(file, &mut *room, at))? {
            0 => break,
            count => end += count,
        }
    }
    text.truncate(end);
    Ok(text)
}

/// The numbers in the text of a file; `None` if the file is damaged.
fn parse(text: &[u8]) -> Option<BTreeMap<String, u64>> {
    if text.is_empty() {
        return Some(BTreeMap::new());
    }
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() == SIZE)?;
    let (sum, lines) = text.strip_prefix(TITLE)?.split_once('\n')?;
    if sum != checksum(lines) {
        return None;
    }
    // Nearly all of the page is the empty lines at its end.
    let lines = lines.trim_ascii_end().lines().filter(|line| !line.is_empty());
    lines
        .map(|line| {
            line.split_once(' ').and_then(|(key, number)| Some((key.to_owned(), number.parse().ok()?)))
        })
        .collect()
}

/// The text of a file with these numbers; `None` if they do not fit.
pub(super) fn counters_text(numbers: &BTreeMap<String, u64>) -> Option<String> {
    let mut lines = String::with_capacity(SIZE);
    for (key, number) in numbers {
        // Writing to a String cannot fail.
        let _ = writeln!(lines, "{key} {number}");
    }
    let head = TITLE.len() + checksum("").len() + 1;
    let room = SIZE.checked_sub(head)?.checked_sub(lines.len())?;
    lines.push_str(&"\n".repeat(room));
    Some(format!("{TITLE}{}\n{lines}", checksum(&lines)))
}

fn checksum(lines: &str) -> String {
    format!("{:032x}", fnv_hash(lines.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};
    use std::thread;

    use tempfile::TempDir;

    use super::*;
    use crate::counters::Counts;

    fn leak() -> Counts {
        Counts::of_leak("record", true)
    }

    fn number(root: &Path, key: &str) -> u64 {
        read_counters(root).unwrap().numbers.get(key).copied().unwrap_or(0)
    }

    /// spec: 10.5
    #[test]
    fn numbers_of_many_writers_add_up() {
        let root = TempDir::new().unwrap();
        // A writer gives up where others have the lock all the time: what it did not add is in no number.
        let count = || match leak().add_to(root.path()) {
            Ok(()) => 1,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
                0
            }
        };
        let added = thread::scope(|scope| {
            let writers: Vec<_> =
                (0..8).map(|_| scope.spawn(|| (0..50).map(|_| count()).sum::<u64>())).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).sum::<u64>()
        });
        assert!(added > 200, "{added} of 400");
        assert_eq!(number(root.path(), "leak-found/record"), added);
        assert_eq!(number(root.path(), "leak-mended/record"), added);
    }

    #[test]
    fn without_a_root_or_a_file_all_are_zero_and_nothing_is_made() {
        let root = TempDir::new().unwrap();
        assert_eq!(read_counters(root.path()).unwrap(), Counters::default());
        let none = root.path().join("none");
        assert_eq!(read_counters(&none).unwrap(), Counters::default());
        leak().add_to(&none).unwrap_err();
        assert!(!none.try_exists().unwrap());
    }

    /// spec: 10.5
    #[test]
    fn a_damaged_file_begins_with_zero_and_counts_that() {
        let root = TempDir::new().unwrap();
        let path = root.path().join(NAME);
        leak().add_to(root.path()).unwrap();
        let whole = fs::read(&path).unwrap();
        let flipped: Vec<u8> = whole.iter().map(|&byte| if byte == b'1' { b'2' } else { byte }).collect();
        let longer = [whole.as_slice(), b"\n"].concat();
        for damage in [&whole[..100], &flipped, &longer, b"x\n", b"\xff\xfe"] {
            fs::write(&path, damage).unwrap();
            let found = read_counters(root.path()).unwrap();
            assert!(found.is_damaged && found.numbers.is_empty(), "{damage:?}");
            leak().add_to(root.path()).unwrap();
            assert_eq!((number(root.path(), DAMAGED), number(root.path(), "leak-found/record")), (1, 1));
        }
    }

    /// The variable that makes [`writer`] write to a state root.
    const ROOT: &str = "PENFOLD_TEST_COUNTERS";

    /// Counts without end, for the next test.
    #[test]
    #[ignore = "another test starts it"]
    fn writer() {
        #[expect(clippy::disallowed_methods, reason = "the other test passes the root")]
        let Some(root) = std::env::var_os(ROOT) else { return };
        loop {
            leak().add_to(Path::new(&root)).unwrap();
        }
    }

    /// spec: 10.5
    #[test]
    fn a_killed_writer_leaves_the_old_numbers_or_the_new_ones() {
        let root = TempDir::new().unwrap();
        let mut before = 0;
        for _ in 0..5 {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "counters::store::tests::writer", "--ignored"]).env(ROOT, root.path());
            let mut child = command.stdout(Stdio::null()).spawn().unwrap();
            let deadline = Instant::now() + Duration::from_secs(30);
            while number(root.path(), "leak-found/record") < before + 100 {
                assert!(Instant::now() < deadline, "it does not count");
                thread::yield_now();
            }
            child.kill().unwrap();
            child.wait().unwrap();
            let found = number(root.path(), "leak-found/record");
            assert!(found >= before + 100 && !read_counters(root.path()).unwrap().is_damaged);
            assert_eq!(number(root.path(), "leak-mended/record"), found);
            before = found;
        }
    }

    #[test]
    fn keys_of_a_newer_version_are_kept() {
        let root = TempDir::new().unwrap();
        let newer = counters_text(&BTreeMap::from([("new/thing".to_owned(), 7)])).unwrap();
        fs::write(root.path().join(NAME), newer).unwrap();
        leak().add_to(root.path()).unwrap();
        assert_eq!(number(root.path(), "new/thing"), 7);
    }

    #[test]
    fn links_are_not_followed() {
        let root = TempDir::new().unwrap();
        let target = root.path().join("precious");
        fs::write(&target, "x").unwrap();
        symlink(&target, root.path().join(NAME)).unwrap();
        leak().add_to(root.path()).unwrap_err();
        read_counters(root.path()).unwrap_err();
        assert_eq!(fs::read(&target).unwrap(), b"x");
    }

    #[test]
    fn what_is_written_is_read() {
        let numbers = BTreeMap::from([("a/b".to_owned(), 0), ("c".to_owned(), u64::MAX)]);
        let text = counters_text(&numbers).unwrap();
        assert_eq!(text.len(), SIZE);
        assert_eq!(parse(text.as_bytes()), Some(numbers));
        assert_eq!(super::counters_text(&BTreeMap::from([("k".repeat(SIZE), 1)])), None);
    }
}
