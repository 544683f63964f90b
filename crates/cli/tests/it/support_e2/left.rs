//! What is left of a pen: processes by the mark in their environment, entries of directories.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The pids and command lines of all live processes that carry the mark of this pen.
pub fn processes(pen: &Path) -> Vec<(i32, String)> {
    marked(pen).into_iter().map(|(pid, _)| (pid.as_raw_nonzero().get(), command(pid))).collect()
}

/// Ends what a failed test has left, by handle.
pub fn end_processes(pen: &Path) {
    let left = marked(pen);
    for (_, handle) in &left {
        let _ = pidfd_send_signal(handle, Signal::KILL);
    }
    // What still dies after its test has the output of that open, and writes into its directories.
    for (_, handle) in &left {
        let mut fds = [PollFd::new(handle, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 10, tv_nsec: 0 }));
    }
}

/// The handle is opened before the mark is read, so it is a handle to the process that carries the mark.
fn marked(pen: &Path) -> Vec<(Pid, OwnedFd)> {
    let entry = format!("{}={}", super::MARK, pen.display());
    let numbers = entries(Path::new("/proc"));
    let pids = numbers.iter().filter_map(|path| path.file_name()?.to_str()?.parse().ok());
    pids.filter_map(Pid::from_raw)
        .filter_map(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)))
        .filter(|(pid, _)| {
            let file = format!("/proc/{}/environ", pid.as_raw_nonzero());
            let environment = std::fs::read(file).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|text| text == entry.as_bytes())
        })
        .collect()
}

fn command(pid: Pid) -> String {
    let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}

/// What is in a directory; nothing if there is none.
pub fn entries(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The children of a process, over all its threads, and theirs.
pub fn descendants(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    for task in entries(Path::new(&format!("/proc/{pid}/task"))) {
        let children = std::fs::read_to_string(task.join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|word| word.parse().ok()) {
            found.push(child);
            found.extend(descendants(child));
        }
    }
    found
}

/// The processes of penfold among a process and its descendants.
pub fn ours(front: i32) -> Vec<i32> {
    let all = std::iter::once(front).chain(descendants(front));
    all.filter(|pid| {
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        program == std::fs::read_link(format!("/proc/{front}/exe")).unwrap_or_default()
    })
    .collect()
}

/// A process by its handle.
pub struct Handle(OwnedFd);

impl Handle {
    pub fn of(pid: i32) -> Handle {
        Handle(pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        pidfd_send_signal(&self.0, signal).unwrap();
    }
}

/// The front of a sandbox started by this process, or by one below it.
pub fn front(pid: i32) -> i32 {
    let penfold = std::fs::metadata(super::penfold()).unwrap();
    let is_ours = |pid: &i32| {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(format!("/proc/{pid}/exe"))
            .is_ok_and(|exe| (exe.dev(), exe.ino()) == (penfold.dev(), penfold.ino()))
    };
    let mut all = std::iter::once(pid).chain(descendants(pid));
    all.find(is_ours).expect("no process of penfold there")
}

/// The leader below a front: the first that is no process of penfold.
pub fn leader(front: i32) -> i32 {
    let ours = ours(front);
    descendants(front).into_iter().find(|pid| !ours.contains(pid)).expect("no leader there")
}
