//! Moves a tree into a leaf, and back if that fails.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use penfold_cgroup::Leaf;
use penfold_process::{Pid, ProcFs, Process, ProcessId, Stat};
use penfold_state::{Contain, error_chain};
use penfold_teardown::{Level, Search, Selector};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::sandbox_parts::SandboxParts;

/// The most searches for members outside of the leaf. A tree that forks faster than it is moved is not adopted into a
/// leaf.
const MAX_SEARCHES: usize = 64;

/// A tree that was adopted.
pub(super) struct AdoptedTree {
    /// The root of the tree.
    pub(super) root: Stat,
    /// A pidfd of the root.
    pub(super) pidfd: OwnedFd,
    /// The search that finds the members.
    pub(super) search: Search,
    /// The members that were moved into the leaf, and their cgroups before.
    moved: Vec<MemberOrigin>,
}

struct MemberOrigin {
    id: ProcessId,
    from: PathBuf,
}

/// Finds the members and moves them into the leaf. If a member cannot be moved, all stay in their cgroups, and the
/// level is `tree`.
///
/// # Errors
/// The reason, as a sentence. No member is in the leaf then, or the leaf is no longer held.
pub(super) fn adopt_tree(parts: &mut SandboxParts, root: ProcessId) -> Result<AdoptedTree, String> {
    let read_error = |error: io::Error| format!("cannot look at process {}: {error}", root.pid);
    let gone = || format!("process {} is gone", root.pid);
    let mut proc = ProcFs::open().map_err(read_error)?;
    let mut search = Search::new(Selector::Process(root), &mut proc).map_err(read_error)?;
    let process = Process::open_exact(&mut proc, root).map_err(read_error)?.ok_or_else(gone)?;
    let mut members = Vec::new();
    let _ = search.find(&mut proc, &mut members).map_err(read_error)?;
    let stat = members.iter().find(|stat| stat.id() == root).cloned().ok_or_else(gone)?;
    let mut joined = AdoptedTree { root: stat, pidfd: process.into_pidfd(), search, moved: Vec::new() };
    if let Some(leaf) = &parts.leaf
        && let Err(why) = move_all(leaf, &mut proc, &mut joined)
    {
        move_back(parts, &joined);
        // An empty leaf is removed. A leaf that still has processes must not be killed: they are no members.
        if let Some(leaf) = parts.leaf.take() {
            leaf.remove().map_err(|failed| error_chain(&failed.source))?;
        }
        parts.leaf_path = None;
        if parts.setup.spec.contain == Contain::Cgroup {
            return Err(why);
        }
        parts.weaker = Some(why);
    }
    parts.level = if parts.leaf.is_some() { Level::Cgroup } else { Level::Tree };
    joined.search.forget_led();
    Ok(joined)
}

/// Moves members until a search finds none outside of the leaf: forks of a member in the leaf are born there.
fn move_all(leaf: &Leaf, proc: &mut ProcFs, joined: &mut AdoptedTree) -> Result<(), String> {
    let processes = leaf.processes_file().map_err(|error| error_chain(&error))?;
    let read_error = |error: io::Error| format!("cannot look at the members: {error}");
    let mut members = Vec::new();
    for _ in 0..MAX_SEARCHES {
        let found = joined.search.find(proc, &mut members).map_err(read_error)?;
        let mut outside = false;
        for stat in &members {
            let groups = proc.cgroups(stat.pid).map_err(read_error)?.unwrap_or_default();
            if groups.is_empty() || leaf.holds(&groups) {
                continue;
            }
            outside = true;
            let from = directory(leaf, &groups)
                .ok_or_else(|| format!("the cgroup of process {} is out of sight", stat.pid))?;
            joined.moved.push(MemberOrigin { id: stat.id(), from });
            move_one(leaf, &processes, proc, stat.id()).map_err(|error| {
                format!(
                    "process {} ({}) cannot be moved into a cgroup of its own: {error}",
                    stat.pid, stat.comm
                )
            })?;
        }
        if !outside {
            let seen = found.completeness.is_complete();
            return if seen { Ok(()) } else { Err("some processes could not be looked at".to_owned()) };
        }
    }
    Err("it forks faster than it can be moved into a cgroup".to_owned())
}

fn move_one(leaf: &Leaf, processes: &OwnedFd, proc: &mut ProcFs, id: ProcessId) -> io::Result<()> {
    let Some(process) = Process::open_exact(proc, id)? else { return Ok(()) };
    match rustix::io::write(processes, id.pid.as_raw_pid().to_string().as_bytes()) {
        Ok(_) => {}
        // The member has ended since.
        Err(Errno::SRCH) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    }
    if process.has_exited()? {
        spare_successor(leaf, proc, id)?;
    }
    Ok(())
}

/// Moves a non-member out of the leaf, into its parent's cgroup. The member's pid may have been reused just before the
/// write.
fn spare_successor(leaf: &Leaf, proc: &mut ProcFs, id: ProcessId) -> io::Result<()> {
    let Some(stat) = proc.stat(id.pid)?.filter(|stat| stat.id() != id) else { return Ok(()) };
    let moved = proc.cgroups(id.pid)?.is_some_and(|groups| leaf.holds(&groups));
    let Some(parent) = stat.parent.filter(|_| moved) else { return Ok(()) };
    let groups = proc.cgroups(parent)?.unwrap_or_default();
    let home = directory(leaf, &groups).filter(|_| !leaf.holds(&groups));
    move_to(id.pid, &home.unwrap_or_else(|| parent_cgroup(leaf)))
}

/// Moves the members back into their cgroups.
pub(super) fn move_back(parts: &mut SandboxParts, joined: &AdoptedTree) {
    let (Some(leaf), Ok(mut proc)) = (&parts.leaf, ProcFs::open()) else { return };
    for MemberOrigin { id, from } in &joined.moved {
        if let Ok(Some(_)) = Process::open_exact(&mut proc, *id)
            && move_to(id.pid, from).is_err()
        {
            let _ = move_to(id.pid, &parent_cgroup(leaf));
        }
    }
    // Processes that were forked in the leaf meanwhile go to the root's cgroup.
    let mut pids = Vec::new();
    for _ in 0..MAX_SEARCHES {
        if leaf.processes(&mut pids).is_err() || pids.is_empty() {
            return;
        }
        let home = joined.moved.first().map_or_else(|| parent_cgroup(leaf), |moved| moved.from.clone());
        for pid in &pids {
            let _ = move_to(*pid, &home);
        }
    }
    // The teardown would kill the leaf, and with it processes that are no members.
    parts.leaf = None;
}

fn move_to(pid: Pid, cgroup: &Path) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(cgroup.join("cgroup.procs"), flags, Mode::empty())?;
    match rustix::io::write(file.as_fd(), pid.as_raw_pid().to_string().as_bytes()) {
        Ok(_) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the path of the leaf's parent cgroup.
fn parent_cgroup(leaf: &Leaf) -> PathBuf {
    leaf.path().parent().map_or_else(|| leaf.path().to_owned(), Path::to_owned)
}

/// Returns the directory of a cgroup from the text of `/proc/PID/cgroup`, below the leaf's mount point.
fn directory(leaf: &Leaf, groups: &[u8]) -> Option<PathBuf> {
    let name = groups.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"0::/"))?;
    let name = std::str::from_utf8(name).ok().filter(|name| !name.split('/').any(|part| part == ".."))?;
    let mount = leaf.path().to_str()?.strip_suffix(leaf.cgroup())?;
    Some(Path::new(mount).join(name))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use penfold_cgroup::LeafPlace;
    use penfold_process::StartTime;
    use penfold_testkit::{skip, wait_until};

    use super::*;

    /// Forces a race: the pid of a member belongs to another process when it is written to `cgroup.procs`.
    #[test]
    fn process_that_took_the_pid_of_a_member_goes_back_and_a_member_stays() {
        let Ok(place) = LeafPlace::find_here() else { return skip("no cgroup2 to write to") };
        let Ok(leaf) = Leaf::create(&place, &format!("penfold-test-join-{}", std::process::id())) else {
            return skip("no cgroup can be made here");
        };
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        move_to(pid, leaf.path()).unwrap();
        let mut proc = ProcFs::open().unwrap();
        let member = proc.stat(pid).unwrap().unwrap().id();
        let is_inside = || {
            let mut pids = Vec::new();
            leaf.processes(&mut pids).unwrap();
            pids.contains(&pid)
        };

        spare_successor(&leaf, &mut proc, member).unwrap();
        assert!(is_inside(), "a member was moved out");
        let predecessor = ProcessId { start: StartTime(member.start.0 - 1), ..member };
        spare_successor(&leaf, &mut proc, predecessor).unwrap();
        let moved = !is_inside();

        child.kill().unwrap();
        child.wait().unwrap();
        wait_until("the leaf can be removed", || std::fs::remove_dir(leaf.path()).is_ok());
        assert!(moved, "the successor of a member stays in the leaf");
    }
}
