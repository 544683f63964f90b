//! Shared code of the kernel tests. Not every test uses all of it.
use penfold_testkit::{skip, wait_until};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use penfold_cgroup::{Cgroup, KilledLeaf, Leaf, LeafPlace};
use penfold_process::{Pid, ProcFs};
use rustix::event::{PollFd, PollFlags, Timespec};

pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// Returns a place for leaves, or `None` with the reason on stderr.
pub(crate) fn place() -> Option<LeafPlace> {
    match LeafPlace::find_here() {
        Ok(place) => Some(place),
        Err(why) => {
            skip(&why.to_string());
            None
        }
    }
}

/// Returns a name that no other test uses.
pub(crate) fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("penfold-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Ends and removes everything that a test made, even if the test fails.
pub(crate) struct Cleanup {
    pub(crate) path: PathBuf,
    pub(crate) children: Vec<Child>,
}

impl Cleanup {
    pub(crate) fn of(leaf: &Leaf) -> Self {
        Self { path: leaf.path().to_owned(), children: Vec::new() }
    }

    /// Starts a shell in the cgroup `below` of the leaf; `$1` is the leaf's directory.
    pub(crate) fn spawn(&mut self, below: &str, script: &str) -> Pid {
        let script = format!("echo 0 > \"$1{below}/cgroup.procs\" || exit 9\n{script}");
        let child = Command::new("sh")
            .args(["-c", &script, "sh"])
            .arg(&self.path)
            .stdin(Stdio::null())
            .spawn()
            .expect("a shell");
        let pid = Pid::from_child(&child);
        self.children.push(child);
        pid
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        if let Ok(Some(leaf)) = Leaf::open(&self.path) {
            let _ = leaf.thaw();
            let killed = leaf.kill().expect("the leaf can be killed");
            gone(killed);
        }
        for child in &mut self.children {
            // A shell that did not get into the leaf is not killed with the leaf.
            let _ = child.kill();
            let _ = child.wait();
        }
        assert!(Leaf::open(&self.path).is_ok_and(|leaf| leaf.is_none()), "{} is left", self.path.display());
    }
}

/// Waits until no member is left, kills again if needed, and removes the leaf.
pub(crate) fn gone(killed: KilledLeaf) {
    let mut proc = ProcFs::open().expect("/proc");
    wait_until("empty", || {
        let populated = killed.populated().expect("events");
        if populated {
            killed.kill_again(&mut proc).expect("members can be signalled");
        }
        !populated
    });
    killed.remove().expect("an empty leaf can be removed");
}

/// Waits until `count` processes are in the cgroup and below.
pub(crate) fn members(cgroup: &Cgroup, count: usize) -> Vec<Pid> {
    let mut pids = Vec::new();
    wait_until(&format!("{count} members"), || {
        cgroup.processes(&mut pids).expect("a list");
        pids.len() == count
    });
    pids
}

/// Polls for the kernel's notification.
pub(crate) fn notified(cgroup: &Cgroup, timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).expect("a short time");
    let events = cgroup.events().expect("open");
    let mut fds = [PollFd::new(&events, PollFlags::PRI)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&timeout))).expect("poll") > 0
}

/// Returns the state letter of a process, or a space when it is gone.
pub(crate) fn state(pid: Pid) -> char {
    let mut proc = ProcFs::open().expect("/proc");
    proc.stat(pid).expect("stat").map_or(' ', |stat| stat.state.letter())
}
