//! The directories that go with a virtual machine whose runner is dead: its workspace and the directory of its API socket.
//!
//! penfold did not make these directories, and nothing marks them. One is removed only if everything shows that it was made
//! for this virtual machine alone. What cannot be read is kept.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use penfold_cgroup::mountinfo;
use penfold_process::{Pid, ProcessId};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use serde::Serialize;

use super::super::path;
use crate::host_processes::process_age;

/// A runner makes the directory this long before the first process of the chain at most.
const BEFORE: Duration = Duration::from_mins(10);

/// A directory of a virtual machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VmDirectory {
    /// The path.
    #[serde(with = "penfold_process::path_text")]
    pub path: PathBuf,
    /// The reason to keep the directory; without a reason it goes with the virtual machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
    /// Device and inode; `None` if the directory does not exist.
    #[serde(skip)]
    identity: Option<(u64, u64)>,
}

/// A directory that is held open while the processes are ended, so that no other can take its place.
#[derive(Debug)]
pub struct Held {
    /// The path.
    pub path: PathBuf,
    /// The directory; `None` if it does not exist.
    dir: Option<OwnedFd>,
}

/// The virtual machine, as far as it matters for its directories.
pub(super) struct Subject<'a> {
    pub(super) monitor: Pid,
    /// The users of monitor and wrappers, the monitor's first.
    pub(super) users: Vec<u32>,
    /// The first process of the chain.
    pub(super) top: ProcessId,
    pub(super) id: &'a str,
    pub(super) is_certain: bool,
    /// Whether all processes of the host could be read.
    pub(super) is_complete: bool,
    /// The processes that end with it.
    pub(super) tree: HashSet<Pid>,
}

/// What the judgement needs to know of the host.
pub(super) struct Surroundings<'a> {
    /// The paths that must stay.
    pub(super) protected: &'a [PathBuf],
    /// The monitors with the directories that each uses.
    pub(super) used: &'a [(Pid, PathBuf)],
    mount_points: Option<Vec<PathBuf>>,
}

impl<'a> Surroundings<'a> {
    pub(super) fn new(protected: &'a [PathBuf], used: &'a [(Pid, PathBuf)]) -> Self {
        let mounts = std::fs::read("/proc/self/mountinfo")
            .ok()
            .and_then(|text| mountinfo::parse_mountinfo(&text).ok());
        let mount_points = mounts.map(|mounts| mounts.into_iter().map(|mount| mount.mount_point).collect());
        Surroundings { protected, used, mount_points }
    }
}

/// Returns the home directories of all users, passwd(5).
pub(super) fn home_directories() -> Vec<PathBuf> {
    let text = std::fs::read("/etc/passwd").unwrap_or_default();
    let home = |line: &[u8]| {
        line.split(|&byte| byte == b':').nth(5).map(|home| PathBuf::from(OsStr::from_bytes(home)))
    };
    text.split(|&byte| byte == b'\n').filter_map(home).filter(|home| home.is_absolute()).collect()
}

/// Returns the working directory of a process, as this process would name it.
pub(super) fn working_directory(pid: Pid) -> Option<PathBuf> {
    let target = std::fs::read_link(path(pid, "cwd")).ok()?.into_os_string().into_vec();
    let target = target.strip_suffix(b" (deleted)").unwrap_or(&target);
    Some(PathBuf::from(OsStr::from_bytes(target)))
}

/// Returns a path without links above its last component: the kernel shows the directories of processes, and mount points,
/// in this form.
pub(super) fn real_parent_path(path: &Path) -> PathBuf {
    let opened = |above: &Path| {
        rustix::fs::open(above, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
    };
    let above = path.parent().and_then(opened).and_then(|dir| place(&dir));
    above.zip(path.file_name()).map_or_else(|| path.to_owned(), |(above, name)| above.join(name))
}

/// Returns the present path of an open directory.
fn place(dir: &OwnedFd) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).ok()
}

impl VmDirectory {
    /// Judges a directory that the monitor uses, as it sees it: `seen` is a path in its root and mount namespace.
    pub(super) fn judge(
        found: &Path,
        seen: &Path,
        subject: &Subject<'_>,
        host: &Surroundings<'_>,
    ) -> VmDirectory {
        let (identity, kept) = match identity(found) {
            Ok(identity) => (identity, reason(found, seen, identity, subject, host)),
            Err(errno) => (None, Some(format!("it cannot be read: {errno}"))),
        };
        VmDirectory { path: found.to_owned(), kept, identity }
    }

    /// Holds the directory open, if it goes with the virtual machine.
    ///
    /// # Errors
    /// When it is not the directory that was judged.
    pub fn hold(&self) -> Result<Option<Held>, Errno> {
        if self.kept.is_some() {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match rustix::fs::open(&self.path, flags, Mode::empty()) {
            Ok(dir) => Some(dir),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno),
        };
        if let Some(dir) = &dir {
            let stat = rustix::fs::fstat(dir)?;
            let is_moved = place(dir).as_ref() != Some(&self.path);
            if is_moved || self.identity != Some((stat.st_dev, stat.st_ino)) {
                return Err(Errno::STALE);
            }
        }
        Ok(Some(Held { path: self.path.clone(), dir }))
    }
}

impl Held {
    /// Removes the directory, without following links or crossing into mounts. An absent directory is fine.
    ///
    /// # Errors
    /// When something is left at the deadline, or a process or a mount is in the directory.
    pub fn remove(&self, until: Instant) -> std::io::Result<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let host = Surroundings::new(&[], &[]);
        let points = host.mount_points.iter().flatten();
        let mounted = points.into_iter().find(|point| point.starts_with(&self.path));
        let mounted = mounted.map(|point| format!("`{}` is a mount point", point.display()));
        // This process holds it.
        let own = HashSet::from([rustix::process::getpid()]);
        if let Some(why) = mounted.or_else(|| used(&self.path, &own)) {
            let why = format!("{why}: {}", Errno::BUSY);
            return Err(std::io::Error::new(std::io::ErrorKind::ResourceBusy, why));
        }
        if place(dir).is_some_and(|place| place != self.path) {
            return Err(std::io::Error::other("it was moved meanwhile"));
        }
        penfold_resource::remove_directory_in_place(&self.path, dir.as_fd(), until)
            .map_err(std::io::Error::other)
    }
}

/// Returns device and inode of a directory; `None` if it does not exist.
fn identity(found: &Path) -> Result<Option<(u64, u64)>, Errno> {
    match rustix::fs::lstat(found) {
        Ok(stat) => Ok(Some((stat.st_dev, stat.st_ino))),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Returns the reason to keep a directory.
fn reason(
    found: &Path,
    seen: &Path,
    identity: Option<(u64, u64)>,
    subject: &Subject<'_>,
    host: &Surroundings<'_>,
) -> Option<String> {
    let is_named = found.file_name().is_some_and(|name| has_word(&name.to_string_lossy(), subject.id));
    if !subject.is_complete {
        return Some("some processes could not be read".to_owned());
    }
    let is_plain = !found.components().any(|part| part == Component::ParentDir);
    if !found.is_absolute() || !is_plain || !is_named || !subject.is_certain {
        return Some("its name does not show that it was made for this VM".to_owned());
    }
    let above_all = host.protected.iter().find(|other| other.starts_with(found));
    if let Some(other) = above_all {
        return Some(format!("`{}` is needed", other.display()));
    }
    let identity = identity?;
    let stat = rustix::fs::stat(seen).ok().map(|stat| (stat.st_dev, stat.st_ino));
    if stat != Some(identity) {
        return Some("the VM sees another directory at this path, or the path is a link".to_owned());
    }
    if let Some(why) = made_for_another(found, &subject.users, started(subject.top)) {
        return Some(why);
    }
    let used_by = host.used.iter().find(|(pid, used)| *pid != subject.monitor && used.starts_with(found));
    if let Some((pid, _)) = used_by {
        return Some(format!("the VM of process {} uses it, too", pid.as_raw_pid()));
    }
    match &host.mount_points {
        None => Some("the mounts cannot be read".to_owned()),
        Some(points) if points.iter().any(|point| point == found) => Some("it is a mount point".to_owned()),
        Some(_) => used(found, &subject.tree),
    }
}

/// Returns the reason to keep a directory by its owner and age. `began` is the start of the chain, in seconds since 1970.
fn made_for_another(found: &Path, users: &[u32], began: Option<u64>) -> Option<String> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let Ok(stat) = rustix::fs::statx(CWD, found, flags, wanted) else {
        return Some("it cannot be read".to_owned());
    };
    let own = rustix::process::geteuid().as_raw();
    // A monitor with fewer rights may stand in a directory of this user, but only this user's wrappers put it there.
    let is_ours = users.first() == Some(&stat.stx_uid) || (stat.stx_uid == own && users.contains(&own));
    if !is_ours {
        return Some(format!("it belongs to user {}", stat.stx_uid));
    }
    let has_birth = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    let born = u64::try_from(stat.stx_btime.tv_sec).ok().filter(|_| has_birth);
    let (Some(born), Some(began)) = (born, began) else {
        return Some("the file system does not tell when it was made".to_owned());
    };
    (born + BEFORE.as_secs() < began).then(|| "it is much older than the VM".to_owned())
}

/// Returns the time at which a process was started, in seconds since 1970.
fn started(id: ProcessId) -> Option<u64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(now.as_secs().saturating_sub(process_age(id)))
}

/// Names a process that is not one of these and uses a directory. Processes of other users may not be readable; they have no
/// way into a directory of this user that they could not have into any other.
fn used(found: &Path, tree: &HashSet<Pid>) -> Option<String> {
    let spares = |pid: i32| tree.iter().any(|known| known.as_raw_pid() == pid);
    let users = penfold_resource::users_of_directory(found, &spares);
    users.first().map(|user| format!("a process uses it: {user}"))
}

/// Tells whether a name has this text as a word of its own: `vm-a1` has `a1`, and `data` has no `a`.
fn has_word(name: &str, text: &str) -> bool {
    let is_end = |character: Option<char>| !character.is_some_and(char::is_alphanumeric);
    name.match_indices(text).any(|(at, _)| {
        let (before, after) =
            (name.get(..at).unwrap_or_default(), name.get(at + text.len()..).unwrap_or_default());
        is_end(before.chars().next_back()) && is_end(after.chars().next())
    })
}

/// Returns the user who started a process, whatever rights its program has; `None` if it is gone.
pub(super) fn starting_user(pid: Pid) -> Option<u32> {
    // The first of the four is the real one, proc_pid_status(5).
    let text = std::fs::read_to_string(path(pid, "status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 5.18
    #[test]
    fn an_old_directory_and_that_of_another_user_stay() {
        let base = tempfile::tempdir().unwrap();
        let own = rustix::process::geteuid().as_raw();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let kept = |users: &[u32], began| made_for_another(base.path(), users, began);
        assert_eq!(kept(&[own], Some(now)), None);
        assert_eq!(kept(&[own], Some(now - 3600)), None, "the VM is older");
        assert!(kept(&[own], Some(now + BEFORE.as_secs() + 60)).unwrap().contains("older"));
        assert!(kept(&[own], None).is_some());
        // A wrapper of this user has put the monitor there.
        assert_eq!(kept(&[own + 1, own], Some(now)), None);
        assert!(kept(&[own + 1], Some(now)).unwrap().contains("belongs to user"));
        assert!(made_for_another(&base.path().join("missing"), &[own], Some(now)).is_some());
    }

    /// spec: 5.18
    #[test]
    fn an_id_is_a_word_of_the_name_and_no_part_of_one() {
        for (name, id) in
            [("vm-a1", "a1"), ("a1", "a1"), ("a1.d", "a1"), ("x_3f-9.sock", "3f-9"), ("data-a", "a")]
        {
            assert!(has_word(name, id), "{name} {id}");
        }
        for (name, id) in [("data", "a"), ("vms", "vm"), ("a12", "a1"), ("xa1", "a1")] {
            assert!(!has_word(name, id), "{name} {id}");
        }
    }

    #[test]
    fn links_above_are_resolved_and_the_last_is_not() {
        let base = tempfile::tempdir().unwrap();
        let top = real_parent_path(&base.path().join("a")).parent().unwrap().to_owned();
        std::fs::create_dir(top.join("a")).unwrap();
        std::os::unix::fs::symlink(top.join("a"), top.join("link")).unwrap();
        assert_eq!(real_parent_path(&top.join("link/b")), top.join("a/b"));
        assert_eq!(real_parent_path(&top.join("a/../link")), top.join("link"));
        assert_eq!(real_parent_path(&top.join("missing/b")), top.join("missing/b"));
    }
}
