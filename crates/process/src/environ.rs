//! Searches the environment that a process was started with for markers.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::Pid;

use crate::path::ProcPath;
use crate::procfs::{ProcFs, is_gone, read_retrying};

/// The result of a search in a process's environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum EnvironmentMatch {
    /// The environment has a matching entry.
    Yes,
    /// The environment has no matching entry, or the process is gone.
    No,
    /// The environment cannot be read: the process belongs to another user or is not dumpable (ssh-agent, set-uid).
    Hidden(Errno),
}

/// Most environments fit into this size; longer environments are read in pieces.
const CHUNK: usize = 32 * 1024;

/// The place of `env_end` among the fields behind the name: it is the 51st, and the first of these the third.
const ENV_END: usize = 51 - 3;

impl ProcFs {
    /// Tells whether the environment of a process (`/proc/<pid>/environ`, proc(5)) has `key` with a value for which
    /// `matches` is true.
    ///
    /// The kernel shows the environment at exec, as far as the process has not overwritten it: a cross-check, never
    /// proof of absence. If the main thread has exited and has no environment, the other threads are searched. Of a
    /// value longer than about 32 KiB, `matches` sees only the start.
    pub fn environ_has(&mut self, pid: Pid, key: &[u8], matches: impl Fn(&[u8]) -> bool) -> EnvironmentMatch {
        let main = self.environ_file_has(ProcPath::of(pid, "environ").as_c_str(), key, &matches);
        match main {
            Ok(Some(true)) => EnvironmentMatch::Yes,
            Ok(Some(false)) => EnvironmentMatch::No,
            Ok(None) => self.environ_of_threads_has(pid, key, &matches),
            // After the main thread has exited, its file belongs to root, whichever user runs the process.
            Err(errno) => match self.environ_of_threads_has(pid, key, &matches) {
                EnvironmentMatch::Yes => EnvironmentMatch::Yes,
                EnvironmentMatch::No | EnvironmentMatch::Hidden(_) => EnvironmentMatch::Hidden(errno),
            },
        }
    }

    /// Tells whether a process is executing a program just now, so that its environment cannot be seen yet.
    ///
    /// The kernel shows an empty file until it has set `env_end` (`proc_pid_stat(5)`) of the new program. That is 0, too, where this user
    /// may not read it.
    pub fn is_in_exec(&mut self, pid: Pid) -> bool {
        let Ok(text) = self.read(ProcPath::of(pid, "stat").as_c_str()) else { return false };
        let behind_name = text.iter().rposition(|&byte| byte == b')').and_then(|at| text.get(at + 1..));
        let mut fields = behind_name.unwrap_or_default().split(|&byte| byte == b' ').skip(1);
        fields.nth(ENV_END) == Some(b"0")
    }

    fn environ_of_threads_has(
        &mut self,
        pid: Pid,
        key: &[u8],
        matches: &impl Fn(&[u8]) -> bool,
    ) -> EnvironmentMatch {
        let mut tids = std::mem::take(&mut self.tids);
        tids.clear();
        let mut evidence = match self.numbers_in(ProcPath::of(pid, "task").as_c_str(), &mut tids) {
            Err(errno) if !is_gone(errno) => EnvironmentMatch::Hidden(errno),
            _ => EnvironmentMatch::No,
        };
        for &tid in tids.iter().filter(|&&tid| tid != pid) {
            match self.environ_file_has(ProcPath::of_task(pid, tid, "environ").as_c_str(), key, matches) {
                // All threads share one environment: the first thread that has any decides.
                Ok(Some(true)) => evidence = EnvironmentMatch::Yes,
                Ok(Some(false)) => evidence = EnvironmentMatch::No,
                Ok(None) => continue,
                Err(errno) => {
                    evidence = EnvironmentMatch::Hidden(errno);
                    continue;
                }
            }
            break;
        }
        self.tids = tids;
        evidence
    }

    /// Returns `None` when the file is empty or gone.
    fn environ_file_has(
        &mut self,
        path: &CStr,
        key: &[u8],
        matches: &impl Fn(&[u8]) -> bool,
    ) -> Result<Option<bool>, Errno> {
        let result = self.open_file(path).and_then(|fd| {
            if self.environ.is_empty() {
                self.environ.resize(CHUNK, 0);
            }
            search(&fd, &mut self.environ, key, matches)
        });
        match result {
            // For a task without memory, newer kernels return ESRCH instead of an empty file.
            Err(errno) if is_gone(errno) => Ok(None),
            other => other,
        }
    }
}

/// Reads NUL-terminated entries piece by piece; the unfinished entry at the end of one piece moves to the launcher.
fn search(
    fd: &OwnedFd,
    buffer: &mut [u8],
    key: &[u8],
    matches: &impl Fn(&[u8]) -> bool,
) -> Result<Option<bool>, Errno> {
    let mut kept = 0;
    // True inside an entry whose start was already judged.
    let mut inside = false;
    let mut any = false;
    loop {
        let length = read_retrying(fd, &mut buffer[kept..])?;
        any |= length > 0;
        let filled = kept + length;
        let mut rest = &buffer[..filled];
        while let Some(end) = nul(rest) {
            if !inside && is_entry(&rest[..end], key, matches) {
                return Ok(Some(true));
            }
            inside = false;
            rest = &rest[end + 1..];
        }
        // The kernel copies all that it can, so a read that leaves room has reached the end.
        if length == 0 || filled < buffer.len() {
            let found = !inside && is_entry(rest, key, matches);
            return Ok(any.then_some(found));
        }
        kept = rest.len();
        if kept == buffer.len() {
            if !inside && is_entry(rest, key, matches) {
                return Ok(Some(true));
            }
            inside = true;
            kept = 0;
        } else {
            buffer.copy_within(filled - kept.., 0);
        }
    }
}

fn is_entry(entry: &[u8], key: &[u8], matches: &impl Fn(&[u8]) -> bool) -> bool {
    entry.strip_prefix(key).and_then(|rest| rest.strip_prefix(b"=")).is_some_and(matches)
}

/// Finds the first NUL, as fast as the standard library can.
fn nul(bytes: &[u8]) -> Option<usize> {
    CStr::from_bytes_until_nul(bytes).ok().map(CStr::count_bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    /// Feeds `text` through a pipe, so that reads come in pieces.
    fn found(text: &[u8], room: usize, key: &[u8], value: &[u8]) -> Option<bool> {
        let mut file = tempfile();
        file.write_all(text).expect("room for a small file");
        let fd: OwnedFd = file.into();
        rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0)).expect("a file");
        let mut buffer = vec![0; room];
        search(&fd, &mut buffer, key, &|found: &[u8]| found == value).expect("a file")
    }

    fn tempfile() -> std::fs::File {
        rustix::fs::memfd_create("environ", rustix::fs::MemfdFlags::CLOEXEC).expect("memory").into()
    }

    #[test]
    fn only_a_whole_key_at_the_start_of_an_entry_counts() {
        assert_eq!(found(b"A=1\0KEY=v\0B=2\0", 64, b"KEY", b"v"), Some(true));
        assert_eq!(found(b"A=KEY=v\0XKEY=v\0KEYS=v\0KEY\0", 64, b"KEY", b"v"), Some(false));
        assert_eq!(found(b"KEY=v", 64, b"KEY", b"v"), Some(true), "overwritten, without the last NUL");
        assert_eq!(found(b"", 64, b"KEY", b"v"), None);
    }

    proptest! {
        #[test]
        fn pieces_give_the_same_answer_as_the_whole(
            entries in proptest::collection::vec("(KEY|A|KEY=)=?[v=]{0,12}", 0..12),
            room in 6..40usize,
        ) {
            let text: Vec<u8> = entries.iter().flat_map(|e| e.bytes().chain([0])).collect();
            // A value that does not fit the buffer may be cut: such an entry is left out of the comparison.
            prop_assume!(entries.iter().all(|e| e.len() < room));
            let whole = entries.iter().any(|e| e == "KEY=v");
            let expected = (!text.is_empty()).then_some(whole);
            prop_assert_eq!(found(&text, room, b"KEY", b"v"), expected);
        }
    }
}
