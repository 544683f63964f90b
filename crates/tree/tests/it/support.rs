//! Shared code of these tests.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use penfold_testkit::wait_until;
use penfold_tree::{Options, Proof, Report, Survivor, Tree};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process that the test or its tree started; killed when dropped.
pub struct Handle {
    pid: Pid,
    pidfd: OwnedFd,
}

impl Handle {
    pub fn open(pid: i32) -> Handle {
        let pid = Pid::from_raw(pid).unwrap();
        Handle { pid, pidfd: pidfd_open(pid, PidfdFlags::empty()).unwrap() }
    }

    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Waits until the process is a `sleep`. It has the name before it has the command line.
    pub fn sleeps(self) -> Handle {
        let path = format!("/proc/{}/cmdline", self.pid());
        wait_until("the member is what it becomes", || {
            std::fs::read_to_string(&path).is_ok_and(|command| command.starts_with("sleep\0"))
        });
        self
    }

    pub fn has_ended(&self) -> bool {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&NOW)).unwrap() > 0
    }

    pub fn end(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        let _ = poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&limit));
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.end();
    }
}

/// A shell with this script whose output is read.
pub fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdout(Stdio::piped());
    command
}

/// Starts a shell that prints the pid of one `sleep`.
pub fn start(options: &Options, script: &str) -> (Tree, Handle) {
    let mut tree = Tree::spawn_with(options, &mut shell(script)).unwrap();
    let pid = read_line(tree.stdout.as_mut().unwrap());
    (tree, Handle::open(pid.parse().unwrap()).sleeps())
}

/// Reads one line. A daemon may hold the pipe open, so there is no end to wait for.
pub fn read_line(out: &mut impl Read) -> String {
    let mut said = String::new();
    loop {
        let mut byte = [0];
        out.read_exact(&mut byte).unwrap();
        if byte == *b"\n" {
            return said;
        }
        said.push(char::from(byte[0]));
    }
}

/// Tests with a cgroup, where one can be had, and below a subreaper.
pub fn at_both(test: impl Fn(&Options)) {
    test(&Options::new());
    test(&Options::new().cgroup(false));
}

/// Whether a survivor of the report is this process.
pub fn names(report: &Report, handle: &Handle) -> bool {
    report
        .survivors()
        .iter()
        .any(|survivor| matches!(survivor, Survivor::Process { pid, .. } if *pid == handle.pid()))
}

/// Whether the report has this process among the strays, with its command line.
pub fn has_stray(report: &Report, handle: &Handle, command: &str) -> bool {
    report.strays().any(|stray| stray.pid == handle.pid() && stray.command.as_deref() == Some(command))
}

pub fn is_in_cgroup(tree: &Tree) -> bool {
    assert!(matches!(tree.proof(), Proof::Cgroup | Proof::Subreaper), "{:?}", tree.proof());
    *tree.proof() == Proof::Cgroup
}

/// Returns the leaves that this process has made.
pub fn leaves() -> Vec<String> {
    let Ok(place) = penfold_cgroup::LeafPlace::find_here() else { return Vec::new() };
    let prefix = format!("penfold-tree-{}-", std::process::id());
    let entries = std::fs::read_dir(place.path()).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(&prefix))
        .collect()
}

/// Returns the children of this process, alive or not reaped.
pub fn children() -> Vec<Pid> {
    let mut children = Vec::new();
    let mut proc = penfold_process::ProcFs::open().unwrap();
    proc.children(rustix::process::getpid(), &mut children).unwrap();
    children
}

pub fn is_subreaper() -> bool {
    rustix::process::child_subreaper().unwrap().is_some()
}

/// Runs one test of this program again, as an ordinary user who may not make cgroups.
pub fn as_user(name: &str) {
    penfold_testkit::run_test_as(65_534, name);
}
