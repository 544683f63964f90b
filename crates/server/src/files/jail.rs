//! The files that the processes of a jail see, from its root directory on.
//!
//! The leader of the sandbox is bubblewrap. Its only child is the first process of the jail.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use penfold_process::{Pid, ProcFs, Process};
use penfold_state::Files;
use penfold_teardown::Level;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{CWD, Mode, OFlags};

use super::error::FileError;
use super::rights::Actor;
use super::root::{Border, Root};

/// The time that bubblewrap may take to make a jail.
const READY: Duration = Duration::from_secs(5);
/// The shortest and the longest pause between two looks at a jail that is made, in nanoseconds.
const PAUSES: (i64, i64) = (500_000, 20_000_000);

/// The jail of a sandbox that runs.
#[derive(Debug)]
pub struct Jail {
    /// Its root directory.
    pub root: Root,
    /// The users that its processes know.
    pub users: IdMap,
    /// The groups that its processes know.
    pub groups: IdMap,
    /// Its network namespace, which may be that of the host.
    pub(crate) network: OwnedFd,
    /// A pidfd of its first process. It is readable once the jail is gone.
    pub first: OwnedFd,
}

/// The numbers that users or groups of the host have in a user namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdMap(Vec<(u32, u32, u32)>);

/// The number of users and groups that a user namespace does not know.
const UNKNOWN: u32 = 65_534;

impl IdMap {
    /// The map in which each number is itself.
    pub fn all() -> IdMap {
        IdMap(vec![(0, 0, u32::MAX)])
    }

    /// Reads the text of `/proc/PID/uid_map` or `gid_map`.
    pub fn parse(text: &str) -> IdMap {
        let lines = text.lines().filter_map(|line| {
            let mut numbers = line.split_whitespace().map(str::parse);
            Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
        });
        IdMap(lines.collect())
    }

    /// Returns the number in the namespace of a number of the host.
    pub fn inside(&self, outside: u32) -> u32 {
        let mut lines = self.0.iter();
        let found = lines.find_map(|&(inside, first, count)| {
            let offset = outside.checked_sub(first).filter(|offset| *offset < count)?;
            inside.checked_add(offset)
        });
        found.unwrap_or(UNKNOWN)
    }
}

impl Jail {
    /// Reaches the jail of a sandbox. A jail that is just being made is waited for.
    ///
    /// # Errors
    /// When the sandbox has no jail, or it is gone.
    pub fn open(files: &Files) -> Result<Jail, FileError> {
        let until = Instant::now() + READY;
        let (mut pause, longest) = PAUSES;
        loop {
            match look(files).map_err(FileError::NoJail)? {
                Look::Ready(jail) => return Ok(jail),
                Look::NotReady(leader) if Instant::now() < until => {
                    let mut leader = [PollFd::from_borrowed_fd(leader.pidfd(), PollFlags::IN)];
                    let time = Timespec { tv_sec: 0, tv_nsec: pause };
                    let _ = rustix::event::poll(&mut leader, Some(&time));
                    pause = (pause * 2).min(longest);
                }
                Look::NotReady(_) => {
                    return Err(FileError::NoJail(io::Error::other("its jail is not ready")));
                }
            }
        }
    }
}

enum Look {
    Ready(Jail),
    /// bubblewrap makes it; with its process, or with penfold's init.
    NotReady(Process),
}

fn look(files: &Files) -> io::Result<Look> {
    let gone = || io::Error::other("its command has ended");
    let mut proc = ProcFs::open()?;
    let state = files.state()?.ok_or_else(gone)?;
    let leader = state.leader.ok_or_else(gone)?;
    let leader = Process::open_exact(&mut proc, leader)?.ok_or_else(gone)?;
    let mut outer = leader.id().pid;
    if state.level == Level::Pidns
        && let Some(below) = proc.child_with_number(outer, 2)?
    {
        outer = below;
    }
    let Some(first) = proc.child_with_number(outer, 1)? else { return Ok(Look::NotReady(leader)) };
    let Some(first) = Process::open(&mut proc, first)? else { return Ok(Look::NotReady(leader)) };
    // From here on, the pid means this process for as long as its pidfd shows that it lives.
    let pid = first.id().pid;
    let is_first = proc.stat(pid)?.and_then(|stat| stat.parent) == Some(outer);
    let mut children = Vec::new();
    proc.children(pid, &mut children)?;
    // bubblewrap starts the command last: now the root directory is that of the command.
    if !is_first || children.is_empty() {
        return Ok(Look::NotReady(leader));
    }
    let jail = enter(pid)?;
    if first.has_exited()? || leader.has_exited()? {
        return Err(gone());
    }
    let (root, users, groups, network) = jail;
    Ok(Look::Ready(Jail { root, users, groups, network, first: first.into_pidfd() }))
}

/// Opens the root directory and the network namespace of a process, and reads its users and groups.
fn enter(pid: Pid) -> io::Result<(Root, IdMap, IdMap, OwnedFd)> {
    let process = format!("/proc/{}", pid.as_raw_pid());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, format!("{process}/root"), flags, Mode::empty())?;
    let map =
        |kind: &str| std::fs::read_to_string(format!("{process}/{kind}")).map(|text| IdMap::parse(&text));
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let network = rustix::fs::openat(CWD, format!("{process}/ns/net"), flags, Mode::empty())?;
    Ok((Root::new(root, Border::Stays, Actor::Jail), map("uid_map")?, map("gid_map")?, network))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_the_namespace() {
        let map = IdMap::parse("      1000          0          1\n   0  100000  65536\n");
        assert_eq!([0, 100_000, 100_033, 1].map(|id| map.inside(id)), [1000, 0, 33, UNKNOWN]);
        assert_eq!(IdMap::parse("         0          0 4294967295\n").inside(1000), 1000);
        assert_eq!(IdMap::parse("nothing\n1 2").inside(0), UNKNOWN);
    }
}
