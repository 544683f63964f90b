//! Shared code of the tests of the log.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use penfold_state::log::{LogEntry, LogPosition, LogReader, LogWaitEnd, LogWriter, Stream, USUAL_LIMIT};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

/// A directory that stands for a record.
pub struct Place {
    pub path: tempfile::TempDir,
    dir: File,
}

impl Place {
    pub fn new() -> Place {
        Place::within(std::env::temp_dir().as_path())
    }

    pub fn within(parent: &std::path::Path) -> Place {
        let path = tempfile::Builder::new().prefix("penfold-log-").tempdir_in(parent).unwrap();
        let dir = File::open(path.path()).unwrap();
        Place { path, dir }
    }

    pub fn log(&self) -> std::path::PathBuf {
        self.path.path().join("log")
    }

    pub fn read(&self, from: LogPosition) -> LogReader {
        LogReader::open(self.dir.as_fd(), from).unwrap()
    }

    /// Returns the output of both streams from here on.
    pub fn text(&self, from: LogPosition) -> String {
        String::from_utf8(Read::to_end(&mut self.read(from)).all).unwrap()
    }
}

impl AsFd for Place {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// The entries that a reader returned.
#[derive(Debug, Default)]
pub struct Read {
    /// Both streams in order.
    pub all: Vec<u8>,
    pub out: Vec<u8>,
    pub err: Vec<u8>,
    pub lost: u64,
    pub missed: u64,
    pub damaged: u64,
    /// The offset and the length of every piece.
    pub pieces: Vec<(u64, usize)>,
}

impl Read {
    pub fn to_end(reader: &mut LogReader) -> Read {
        let mut read = Read::default();
        while read.take(reader) {}
        read
    }

    /// Takes one entry; false at the end.
    pub fn take(&mut self, reader: &mut LogReader) -> bool {
        match reader.next_entry().unwrap() {
            Some(LogEntry::Data { stream, offset, bytes, .. }) => {
                self.pieces.push((offset, bytes.len()));
                self.all.extend_from_slice(bytes);
                match stream {
                    Stream::Stdout => self.out.extend_from_slice(bytes),
                    Stream::Stderr => self.err.extend_from_slice(bytes),
                }
            }
            Some(LogEntry::Lost { bytes, .. }) => self.lost += bytes,
            Some(LogEntry::Missed { bytes }) => self.missed += bytes,
            Some(LogEntry::Damaged { bytes, .. }) => self.damaged += bytes,
            None => return false,
        }
        true
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos().try_into().unwrap()
}

/// Waits by poll(2), as a supervisor does.
pub fn wait(fd: &OwnedFd, how: PollFlags, timeout: Option<Duration>) {
    let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap());
    let _ = poll(&mut [PollFd::new(fd, how)], timeout.as_ref());
}

/// Writes lines with pauses and returns the sorted delays of a follower in µs.
///
/// `before` is called when all files for the log are open.
pub fn latencies(place: &Place, lines: usize, before: impl FnOnce()) -> Vec<u64> {
    let mut writer = LogWriter::create(place.as_fd(), USUAL_LIMIT).unwrap();
    let mut reader = place.read(LogPosition::Start);
    let over = AtomicBool::new(false);
    let (clock, _held) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    before();
    std::thread::scope(|scope| {
        let follower = scope.spawn(|| {
            let mut behind = Vec::new();
            loop {
                while let Some(entry) = reader.next_entry().unwrap() {
                    let LogEntry::Data { time, .. } = entry else { panic!("{entry:?}") };
                    behind.push(now().saturating_sub(time) / 1000);
                }
                if reader.wait(|| over.load(Ordering::SeqCst), None).unwrap() == LogWaitEnd::Ended {
                    return behind;
                }
            }
        });
        for _ in 0..lines {
            wait(&clock, PollFlags::IN, Some(Duration::from_millis(3)));
            writer.append(Stream::Stdout, b"a line\n");
        }
        over.store(true, Ordering::SeqCst);
        drop(writer);
        let mut behind = follower.join().unwrap();
        assert_eq!(behind.len(), lines);
        behind.sort_unstable();
        behind
    })
}
