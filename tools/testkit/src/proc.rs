//! Reads processes from /proc, without the code under test.
//!
//! The judge must not share a parser with the judged program: an error in the parser would hide itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::Serialize;

/// The identity of a process, distinct from a later process with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Identity {
    /// The pid in the pid namespace of this process.
    pub pid: i32,
    /// The start time in clock ticks since boot, field 22 of `/proc/PID/stat`.
    pub start: u64,
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.pid, self.start)
    }
}

impl std::str::FromStr for Identity {
    type Err = String;

    /// Reads `PID:START`.
    fn from_str(text: &str) -> Result<Identity, String> {
        let wrong = || format!("`{text}` is not PID:START");
        let (pid, start) = text.split_once(':').ok_or_else(wrong)?;
        Ok(Identity { pid: pid.parse().map_err(|_| wrong())?, start: start.parse().map_err(|_| wrong())? })
    }
}

/// The needed fields of a line of `/proc/PID/stat` ([proc_pid_stat(5)]).
///
/// [proc_pid_stat(5)]: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The pid and start time.
    pub id: Identity,
    /// The name of the main thread, lossy.
    pub name: String,
    /// The state letter of the main thread.
    pub state: char,
    /// The parent; 0 if it is in an outer namespace.
    pub parent: i32,
    /// The process group.
    pub group: i32,
    /// The number of threads, including a dead main thread.
    pub threads: u32,
    /// Whether it is a thread of the kernel, which has neither arguments nor an environment.
    pub is_kernel_thread: bool,
}

/// `PF_KTHREAD` of the field `flags`.
const KERNEL_THREAD: u32 = 0x0020_0000;

/// The pid of the parent of all other threads of the kernel.
const KTHREADD: i32 = 2;

impl Stat {
    /// Tells whether no thread of the process runs: its main thread is dead and no other thread lives.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X') && self.threads <= 1
    }

    fn parse(text: &[u8]) -> Option<Stat> {
        // The name may contain spaces, `)` and newlines; no later field contains a `)`.
        let open = text.iter().position(|&byte| byte == b'(')?;
        let close = text.iter().rposition(|&byte| byte == b')')?;
        let pid = std::str::from_utf8(text.get(..open)?).ok()?.trim().parse().ok()?;
        let name = String::from_utf8_lossy(text.get(open + 1..close)?).into_owned();
        let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        Some(Stat {
            id: Identity { pid, start: fields.get(19)?.parse().ok()? },
            name,
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            threads: fields.get(17)?.parse().ok()?,
            is_kernel_thread: fields.get(6)?.parse::<u32>().ok()? & KERNEL_THREAD != 0,
        })
    }
}

/// Reads one process; `None` if no process has this pid.
pub fn stat(pid: i32) -> Option<Stat> {
    read_stat(&format!("/proc/{pid}/stat")).ok()?
}

/// Tests read this file more often than any other.
fn read_stat(path: &str) -> io::Result<Option<Stat>> {
    // The kernel returns the whole line to one read(2).
    let mut line = [0_u8; 1024];
    let length = fs::File::open(path)?.read(&mut line)?;
    Ok(line.get(..length).and_then(Stat::parse))
}

/// Reads a file of /proc, such as the arguments of a process.
///
/// # Errors
/// Those of open(2) and read(2).
pub fn read_proc_file(path: &str) -> io::Result<Vec<u8>> {
    // `fs::read` gets no size from /proc and begins with small reads; the kernel opens the memory of the process for each.
    let mut text = Vec::with_capacity(16 * 1024);
    fs::File::open(path)?.take(u64::MAX).read_to_end(&mut text)?;
    Ok(text)
}

/// Reads the calling process as /proc shows it. In a pid namespace without a /proc of its own, the numbers are those of
/// the namespace that mounted /proc.
///
/// # Errors
/// When /proc is not mounted.
pub fn this() -> io::Result<Stat> {
    read_stat("/proc/self/stat")?.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Returns every process that /proc shows now, without the children of kthreadd: the threads of the kernel are most of what there is.
pub fn all() -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // Read last: a pid that is one of these now can only have been that of a process that has ended since.
    let of_kernel = kernel_threads();
    pids.into_iter().filter(|pid| !of_kernel.contains(pid)).filter_map(stat).collect()
}

/// Returns the children of kthreadd; none in a pid namespace that does not have it.
fn kernel_threads() -> BTreeSet<i32> {
    if !stat(KTHREADD).is_some_and(|stat| stat.is_kernel_thread) {
        return BTreeSet::new();
    }
    let children = read_proc_file(&format!("/proc/{KTHREADD}/task/{KTHREADD}/children")).unwrap_or_default();
    let children = String::from_utf8_lossy(&children);
    children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Returns the pids below `root` in this list, without `root` itself.
pub fn descendants(list: &[Stat], root: i32) -> BTreeSet<i32> {
    descendants_without(list, root, &BTreeSet::new())
}

/// As [`descendants`], without these processes and those below them.
pub fn descendants_without(list: &[Stat], root: i32, others: &BTreeSet<i32>) -> BTreeSet<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for process in list {
        children.entry(process.parent).or_default().push(process.id.pid);
    }
    let mut found = BTreeSet::new();
    let mut open = vec![root];
    while let Some(parent) = open.pop() {
        for &child in children.get(&parent).into_iter().flatten() {
            if child != root && !others.contains(&child) && found.insert(child) {
                open.push(child);
            }
        }
    }
    found
}

/// Returns the ancestors of this process, beginning with the process itself.
pub fn ancestors(pid: i32) -> Vec<Identity> {
    let mut line = Vec::new();
    let mut next = pid;
    while let Some(process) = stat(next) {
        if line.contains(&process.id) {
            break;
        }
        line.push(process.id);
        next = process.parent;
    }
    line
}

/// Tells whether the environment or the arguments of any thread of the process contain these bytes.
///
/// A main thread that has exited shows neither, so this looks at all threads.
pub fn carries(pid: i32, bytes: &[u8]) -> bool {
    let holds = |path: String| read_proc_file(&path).is_ok_and(|text| contains(&text, bytes));
    if holds(format!("/proc/{pid}/environ")) || holds(format!("/proc/{pid}/cmdline")) {
        return true;
    }
    if stat(pid).is_none_or(|stat| stat.state != 'Z' || stat.threads <= 1) {
        return false;
    }
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().any(|thread| {
        let directory = thread.path();
        ["environ", "cmdline"].iter().any(|file| holds(directory.join(file).display().to_string()))
    })
}

fn contains(mut text: &[u8], bytes: &[u8]) -> bool {
    let Some((first, rest)) = bytes.split_first() else { return false };
    while let Some(place) = text.iter().position(|byte| byte == first) {
        text = text.get(place + 1..).unwrap_or_default();
        if text.starts_with(rest) {
            return true;
        }
    }
    false
}

/// Returns the arguments joined by spaces, at most 160 characters; without arguments, the name in brackets.
pub fn command_line(process: &Stat) -> String {
    let text = read_proc_file(&format!("/proc/{}/cmdline", process.id.pid)).unwrap_or_default();
    let text: String = String::from_utf8_lossy(&text)
        .trim_end_matches('\0')
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .take(160)
        .collect();
    if text.is_empty() { format!("[{}]", process.name.escape_default()) } else { text }
}

/// Translates identities from inside some pid namespace to identities as seen from here, in the same order.
///
/// Start times are the same in all pid namespaces; `NSpid` of `/proc/PID/status` lists a process's pids. The search is
/// limited to descendants of `root`: elsewhere on the host another namespace may have the same numbers.
pub fn resolve(told: &[Identity], root: i32) -> Vec<Option<Identity>> {
    let list = all();
    let below = descendants(&list, root);
    let mut seen: BTreeMap<(i32, u64), Identity> = BTreeMap::new();
    for id in list.iter().map(|process| process.id).filter(|id| below.contains(&id.pid)) {
        let status = read_proc_file(&format!("/proc/{}/status", id.pid)).unwrap_or_default();
        let status = String::from_utf8_lossy(&status);
        let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        for pid in pids.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()) {
            seen.entry((pid, id.start)).or_insert(id);
        }
        // A match in this namespace precedes a match in an inner one.
        seen.insert((id.pid, id.start), id);
    }
    told.iter().map(|told| seen.get(&(told.pid, told.start)).copied()).collect()
}

/// A process held by a descriptor, which cannot refer to another process.
#[derive(Debug)]
pub struct Handle {
    /// The identity of the process.
    pub id: Identity,
    pidfd: OwnedFd,
}

impl Handle {
    /// Opens a process; `None` if it is gone or another process has its pid by now.
    ///
    /// # Errors
    /// The errors of `pidfd_open(2)` other than `ESRCH`, such as `EMFILE`.
    pub fn open(id: Identity) -> io::Result<Option<Handle>> {
        let Some(pid) = Pid::from_raw(id.pid) else { return Ok(None) };
        let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            // The pid of a thread other than the main thread gives EINVAL, on newer kernels ENOENT.
            Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        // The descriptor was opened first. If the start time still matches, the descriptor refers to the intended
        // process.
        Ok(stat(id.pid).filter(|stat| stat.id == id).map(|_| Handle { id, pidfd }))
    }

    /// Returns the pidfd.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Tells whether the last thread of the process has ended.
    pub fn has_ended(&self) -> bool {
        self.wait(Some(std::time::Duration::ZERO))
    }

    /// Waits until the process has ended, at most this long; `None` waits without a deadline. Tells whether it has
    /// ended.
    pub fn wait(&self, timeout: Option<std::time::Duration>) -> bool {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut set = [PollFd::new(&self.pidfd, PollFlags::IN)];
        loop {
            match rustix::event::poll(&mut set, timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(count) => return count > 0,
                Err(_) => return false,
            }
        }
    }

    /// Sends a signal; a process that is gone counts as success.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_parenthesis_and_newline_is_read() {
        let text = b"12 (a ) (\n) S 1 12 9 0 -1 4 0 0 0 0 0 0 0 0 20 0 3 0 4711 0 0";
        let stat = Stat::parse(text).unwrap();
        assert_eq!(stat.name, "a ) (\n");
        assert_eq!((stat.state, stat.parent, stat.threads), ('S', 1, 3));
        assert_eq!(stat.id, Identity { pid: 12, start: 4711 });
    }

    #[test]
    fn own_process_is_its_own_first_ancestor() {
        let id = this().unwrap().id;
        assert_eq!(ancestors(id.pid).first(), Some(&id));
        let parent = this().unwrap().parent;
        assert_eq!(resolve(&[id], parent), [Some(id)]);
        assert_eq!(resolve(&[id], id.pid), [None]);
        assert!(!Handle::open(id).unwrap().unwrap().has_ended());
    }

    #[test]
    fn all_are_listed_but_the_threads_of_the_kernel() {
        let own = this().unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let list = all();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(list.iter().any(|process| process.id == own.id));
        assert!(list.iter().any(|process| i64::from(process.id.pid) == i64::from(child.id())));
        assert!(list.iter().all(|process| process.id.pid == KTHREADD || !process.is_kernel_thread));
    }

    /// spec: 3.1
    #[test]
    fn wrong_start_time_opens_nothing() {
        let id = this().unwrap().id;
        assert!(Handle::open(Identity { start: id.start + 1, ..id }).unwrap().is_none());
    }
}
