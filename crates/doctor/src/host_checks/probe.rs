//! Tries features on a throwaway cgroup and in throwaway namespaces.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use penfold_cgroup::{KilledLeaf, Leaf, LeafPlace};
use penfold_process::{Pid, ProcFs};
use penfold_sys::ForkSide;
use penfold_sys::launch::{self, Launch, Namespaces, Program};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, AtFlags};
use rustix::process::{PidfdFlags, WaitOptions};

use penfold_state::error_chain;
use penfold_state::{Id, LeafName};

/// The time that a child may take to end, and a cgroup to be removed.
const PATIENCE: Duration = Duration::from_secs(1);

/// The results of trying a throwaway cgroup; `None` is "not tried".
#[derive(Debug, Default)]
pub(super) struct LeafProbe {
    /// Whether there is a `cgroup.kill`.
    pub(super) kill_file: bool,
    /// Whether a process that is cloned into the cgroup lives and is in it.
    pub(super) born: Option<bool>,
    /// Whether a process that writes itself into the cgroup lives and is in it.
    pub(super) joined: Option<bool>,
    /// Whether a process that is cloned into the killed cgroup dies at birth.
    pub(super) trap: Option<bool>,
    /// Why the kernel, or a seccomp filter, refuses to clone into the cgroup.
    pub(super) refused: Option<String>,
    /// Why nothing could be tried.
    pub(super) failed: Option<String>,
    /// The cgroup, if it could not be removed.
    pub(super) left: Option<PathBuf>,
}

/// Makes a cgroup, clones processes into it, kills it, tries again, and removes it.
pub(super) fn probe_leaf(place: &LeafPlace, proc: &mut ProcFs) -> LeafProbe {
    let mut probe = LeafProbe::default();
    let created = Id::new().and_then(|id| {
        Leaf::create(place, LeafName::of(&id.short()).as_str())
            .map_err(|error| io::Error::other(error_chain(&error)))
    });
    let leaf = match created {
        Ok(leaf) => leaf,
        Err(error) => {
            probe.failed = Some(error.to_string());
            return probe;
        }
    };
    let path = leaf.path().to_owned();
    probe.kill_file =
        rustix::fs::accessat(leaf.dir(), c"cgroup.kill", Access::EXISTS, AtFlags::empty()).is_ok();
    let born = launch::launch_program(&mut nothing(), Some(leaf.dir()), None);
    probe.refused = born.as_ref().err().map(ToString::to_string);
    probe.born = Some(lives(&born, &leaf, proc));
    let joined = if probe.born == Some(true) {
        None
    } else {
        let file = leaf.processes_file();
        let joined = file.and_then(|file| {
            launch::launch_program(&mut nothing(), None, Some(std::os::fd::AsFd::as_fd(&file)))
        });
        probe.joined = Some(lives(&joined, &leaf, proc));
        joined.ok()
    };
    let removed = match leaf.kill() {
        Ok(killed) => {
            born.into_iter().chain(joined).for_each(end);
            if let Ok(again) = launch::launch_program(&mut nothing(), Some(killed.dir()), None) {
                probe.trap = again.ready().ok().map(|ready| !ready).filter(|_| probe.born == Some(true));
                end(again);
            }
            remove(killed)
        }
        Err(failed) => {
            born.into_iter().chain(joined).for_each(end);
            failed.leaf.remove().is_ok()
        }
    };
    probe.left = (!removed).then_some(path);
    probe
}

/// Returns a program that is never run.
fn nothing() -> Program {
    Program::new(Vec::new(), Vec::new(), Vec::new())
}

fn lives(launched: &io::Result<Launch>, leaf: &Leaf, proc: &mut ProcFs) -> bool {
    let Ok(launched) = launched else { return false };
    launched.ready().unwrap_or(false)
        && proc.cgroups(launched.pid()).is_ok_and(|text| text.is_some_and(|text| leaf.holds(&text)))
}

/// Ends a child and reaps it.
fn end(launched: Launch) {
    let pid = launched.pid();
    drop(launched);
    reap(pid);
}

fn reap(pid: Pid) {
    // A child that no other code reaps keeps its pid until the wait below.
    if let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        wait(&mut [PollFd::new(&pidfd, PollFlags::IN)], PATIENCE);
    }
    let begun = Instant::now();
    // Without a pidfd there is nothing else to wait on.
    while matches!(rustix::process::waitpid(Some(pid), WaitOptions::NOHANG), Ok(None))
        && begun.elapsed() < PATIENCE
    {
        wait(&mut [], Duration::from_millis(2));
    }
}

fn wait(fds: &mut [PollFd<'_>], timeout: Duration) {
    let timeout = Timespec::try_from(timeout).ok();
    let _ = rustix::io::retry_on_intr(|| poll(fds, timeout.as_ref()));
}

fn remove(mut leaf: KilledLeaf) -> bool {
    let begun = Instant::now();
    loop {
        match leaf.remove() {
            Ok(()) => return true,
            Err(failed) if begun.elapsed() < PATIENCE => leaf = failed.leaf,
            Err(_) => return false,
        }
        wait(&mut [], Duration::from_millis(2));
    }
}

/// Creates the namespaces of `--contain pidns` and ends them.
pub(super) fn probe_namespaces() -> io::Result<()> {
    let user = !rustix::process::geteuid().is_root();
    match launch::clone_process(Namespaces { pid: true, user }, None)? {
        ForkSide::Child => penfold_sys::fork::exit_now(0),
        ForkSide::Parent(pid) => {
            reap(pid);
            Ok(())
        }
    }
}
