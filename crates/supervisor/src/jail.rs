//! Finds the jail in which the command of a sandbox runs.
//!
//! The leader is bubblewrap. Its only child is the first process of the jail, which is bubblewrap, too, and the parent of the
//! command. A process of the jail can be neither: orphans of the jail become children of its first process.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use penfold_process::{Pid, ProcFs};
use penfold_state::Jail;
use penfold_sys::launch::JailEntry;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::poll::poll_or_pause;

/// The time that bubblewrap may take to make a jail.
const READY: Duration = Duration::from_secs(10);
/// The longest pause between two looks.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// The process that leads to the jail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JailLeader {
    /// The leader of the sandbox, or penfold's init of its pid namespace.
    pub(crate) pid: Pid,
    /// Whether it is penfold's init.
    pub(crate) is_init: bool,
    /// Its parent, a supervisor of the sandbox.
    pub(crate) parent: Pid,
}

/// Why there is no way into a jail.
enum JailError {
    /// bubblewrap makes it.
    NotReady,
    /// It has ended, or cannot be entered.
    Never(String),
}

impl From<io::Error> for JailError {
    fn from(error: io::Error) -> JailError {
        JailError::Never(error.to_string())
    }
}

impl From<rustix::io::Errno> for JailError {
    fn from(errno: rustix::io::Errno) -> JailError {
        io::Error::from(errno).into()
    }
}

/// Opens the way into the jail once the command is about to run in it. Without `waits`, a jail that is not ready is an error.
///
/// # Errors
/// The reason, as a sentence.
pub(crate) fn find_jail(leader: JailLeader, jail: &Jail, waits: bool) -> Result<JailEntry, String> {
    let refused = |reason: &str| format!("cannot enter the jail of the sandbox: {reason}");
    let ended = || refused("its command has ended");
    let mut proc = ProcFs::open().map_err(|error| refused(&error.to_string()))?;
    let pidfd = pidfd_open(leader.pid, PidfdFlags::empty()).map_err(|_| ended())?;
    let until = Instant::now() + READY;
    let mut pause = Duration::from_millis(1);
    loop {
        match look(&mut proc, leader, jail) {
            Ok(entry) => return Ok(entry),
            Err(JailError::Never(reason)) => return Err(refused(&reason)),
            Err(JailError::NotReady) if !waits || Instant::now() > until => {
                return Err(refused("it is not ready"));
            }
            Err(JailError::NotReady) => {}
        }
        if has_ended(&pidfd, pause) {
            return Err(ended());
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Waits for the end of a process.
fn has_ended(pidfd: &OwnedFd, time: Duration) -> bool {
    let time = Timespec::try_from(time).ok();
    poll_or_pause(&mut [PollFd::new(pidfd, PollFlags::IN)], time.as_ref()).is_ok_and(|ready| ready > 0)
}

fn look(proc: &mut ProcFs, leader: JailLeader, jail: &Jail) -> Result<JailEntry, JailError> {
    let JailLeader { pid, is_init, parent } = leader;
    if parent_of(proc, pid)? != Some(parent) {
        return Err(JailError::Never("its command has ended".to_owned()));
    }
    let mut child_of =
        |parent: Pid, number| proc.child_with_number(parent, number)?.ok_or(JailError::NotReady);
    let outer = if is_init { child_of(pid, 2)? } else { pid };
    let first = child_of(outer, 1)?;
    let pidfd = pidfd_open(first, PidfdFlags::empty())?;
    // From here on, `first` means this process for as long as `pidfd` shows that it lives.
    let is_first = parent_of(proc, first)? == Some(outer);
    let mut children = Vec::new();
    proc.children(first, &mut children)?;
    // bubblewrap starts the command last: now root directory and namespaces are those of the command.
    if !is_first || children.is_empty() {
        return Err(JailError::NotReady);
    }
    let bounding = bounding_set(first)?;
    let filter = jail.filter.clone().unwrap_or_default();
    let entry = JailEntry::open(first, bounding, filter)?;
    if has_ended(&pidfd, Duration::ZERO) {
        return Err(JailError::Never("its command has ended".to_owned()));
    }
    Ok(entry)
}

fn parent_of(proc: &mut ProcFs, pid: Pid) -> io::Result<Option<Pid>> {
    Ok(proc.stat(pid)?.and_then(|stat| stat.parent))
}

/// Reads the capabilities in the bounding set of a process.
fn bounding_set(pid: Pid) -> io::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid()))?;
    let set = text.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let number = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}
