//! What members leave besides processes, as far as the kernel tells whose it is: socket files and objects of System V IPC.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use penfold_process::{Pid, ProcFs, Stat};
use penfold_state::LeakedObject;

/// The Unix sockets of this network namespace, with the paths that they are bound to.
const SOCKETS: &str = "/proc/thread-self/net/unix";
/// The objects of this IPC namespace: the file, the kind, and the columns of the pids of creator or last users. That of semaphores has
/// no pids.
const SYSV: [(&str, &str, [usize; 2]); 2] = [
    ("/proc/sysvipc/shm", "SysV shared memory", [4, 5]),
    ("/proc/sysvipc/msg", "SysV message queue", [5, 6]),
];
/// The most objects that are remembered.
const MOST: usize = 256;

/// The socket files that members have made.
#[derive(Debug, Default)]
pub(crate) struct SocketFiles {
    /// The sockets that were looked at, by their inodes.
    known: HashSet<u64>,
    made: BTreeMap<PathBuf, (Pid, String)>,
}

impl SocketFiles {
    /// Begins with the sockets that are there.
    pub(crate) fn start() -> SocketFiles {
        SocketFiles { known: bound().into_iter().map(|(inode, _)| inode).collect(), made: BTreeMap::new() }
    }

    /// Looks whose the new sockets are, if there are any.
    pub(crate) fn look(&mut self, proc: &mut ProcFs, members: &[Stat]) {
        let sockets = bound();
        let new: HashMap<u64, PathBuf> =
            sockets.into_iter().filter(|(inode, _)| self.known.insert(*inode)).collect();
        if new.is_empty() {
            return;
        }
        for stat in members {
            for (_, path) in new.iter().filter(|(inode, _)| holds(stat.pid, **inode)) {
                if self.made.len() >= MOST {
                    return;
                }
                let command = proc.command_line(stat.pid).unwrap_or_else(|| stat.comm.clone());
                let path = if path.is_absolute() {
                    path.clone()
                } else {
                    let directory = std::fs::read_link(format!("/proc/{}/cwd", stat.pid.as_raw_pid()));
                    directory.unwrap_or_default().join(path)
                };
                self.made.entry(path).or_insert((stat.pid, command));
            }
        }
    }

    /// Returns those that are still there.
    pub(crate) fn left(&self) -> Vec<LeakedObject> {
        let is_socket =
            |path: &Path| std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
        let made = self.made.iter().filter(|(path, _)| is_socket(path));
        made.map(|(path, (pid, command))| LeakedObject {
            kind: "socket".to_owned(),
            name: path.to_string_lossy().into_owned(),
            pid: pid.as_raw_pid(),
            command: command.clone(),
        })
        .collect()
    }
}

/// Returns the inodes and paths of bound sockets, without the abstract ones.
fn bound() -> Vec<(u64, PathBuf)> {
    let text = std::fs::read(SOCKETS).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    // Num RefCount Protocol Flags Type St Inode Path
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(6);
        let inode = words.next()?.parse().ok()?;
        let path = words.next().filter(|path| !path.starts_with('@'))?;
        // The path may have blanks.
        let path = line.get(line.find(path)?..)?;
        Some((inode, PathBuf::from(path)))
    };
    text.lines().skip(1).filter_map(line).collect()
}

/// Tells whether a process has this socket open.
fn holds(pid: Pid, inode: u64) -> bool {
    let entries = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_pid()));
    let mut name = String::new();
    let _ = write!(name, "socket:[{inode}]");
    entries
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == name.as_str()))
}

/// The objects of System V IPC that were there before.
#[derive(Debug, Default)]
pub(crate) struct SysvObjects {
    before: HashSet<(&'static str, String)>,
}

impl SysvObjects {
    /// Begins with the objects that are there.
    pub(crate) fn start() -> SysvObjects {
        SysvObjects { before: sysv().into_iter().map(|(kind, name, _)| (kind, name)).collect() }
    }

    /// Returns the new objects whose creator or last user is one of these processes.
    pub(crate) fn left(&self, members: &HashMap<i32, String>) -> Vec<LeakedObject> {
        let left = |(kind, name, pids): (&'static str, String, Vec<i32>)| {
            let (pid, command) = pids.into_iter().find_map(|pid| Some((pid, members.get(&pid)?.clone())))?;
            let is_new = !self.before.contains(&(kind, name.clone()));
            is_new.then(|| LeakedObject { kind: kind.to_owned(), name, pid, command })
        };
        sysv().into_iter().filter_map(left).collect()
    }
}

/// Returns the objects: kind, number, and the pids of creator or last users.
fn sysv() -> Vec<(&'static str, String, Vec<i32>)> {
    let mut all = Vec::new();
    for (file, kind, columns) in SYSV {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let pids = columns.iter().filter_map(|column| words.get(*column)?.parse().ok()).collect();
            all.extend(words.get(1).map(|name| (kind, (*name).to_owned(), pids)));
        }
    }
    all
}
