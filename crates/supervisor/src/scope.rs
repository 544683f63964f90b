//! The scope of a sandbox: its standby waits until a service manager has moved it there, then makes room for the leaf.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use penfold_cgroup::{Leaf, LeafPlace};
use penfold_state::{SUPERVISORS, ScopeDir};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::retry_on_intr;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::poll::poll_or_pause;

/// Where a new sandbox begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScopeEntry {
    /// In a scope of its own. The kernel showed the process in this cgroup.
    Scope(PathBuf),
    /// In the cgroup of its launcher.
    Nothing,
    /// Nowhere: the sandbox is not started.
    Refused,
}

/// The longest time for which a standby waits. Its launcher is stopped then.
const WAIT_LIMIT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
const IN_SCOPE: u8 = 1;
const ELSEWHERE: u8 = 0;

/// The pipe through which the standby learns where it is. Until then it has created nothing.
pub(crate) struct ScopeGate {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl ScopeGate {
    pub(crate) fn create() -> io::Result<ScopeGate> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok(ScopeGate { reader, writer })
    }

    /// Tells the standby where it is. If it is refused, or cannot be told, it exits.
    pub(crate) fn open(self, entered: &ScopeEntry) -> bool {
        let word = match entered {
            ScopeEntry::Scope(_) => IN_SCOPE,
            ScopeEntry::Nothing => ELSEWHERE,
            ScopeEntry::Refused => return false,
        };
        rustix::io::write(&self.writer, &[word]).is_ok()
    }

    /// Waits for the launcher, and returns whether this process is in a scope; `None` if it must exit: it was refused, or the
    /// launcher is dead.
    pub(crate) fn pass(self) -> Option<bool> {
        let ScopeGate { reader, writer } = self;
        drop(writer);
        let mut word = [0];
        let polled =
            retry_on_intr(|| poll_or_pause(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&WAIT_LIMIT)));
        match (polled, rustix::io::read(&reader, &mut word)) {
            (Ok(1), Ok(1)) => Some(word == [IN_SCOPE]),
            _ => None,
        }
    }
}

/// Moves this process from the scope into a cgroup of its own below the scope, and returns the cgroup of the scope.
///
/// If there can be no such cgroup, this process stays where it is: a leaf needs no controllers.
pub(crate) fn enter_own_cgroup(id: &str) -> Option<PathBuf> {
    let scope = LeafPlace::find_here().ok()?;
    ScopeDir::of(scope.path(), id)?;
    if let Ok(own) = Leaf::create(&scope, SUPERVISORS)
        && let Ok(processes) = own.processes_file()
    {
        let _ = rustix::io::write(&processes, b"0");
    }
    Some(scope.path().to_owned())
}
