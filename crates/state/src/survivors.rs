//! The survivors of sandboxes: members that could not be ended, remembered in the state root until each was seen dead.
//!
//! A survivor may belong to another user, hide its environment and have left its cgroup. Once its supervisor is dead, nothing but
//! this memory leads to it. The memory is beside the records, so it outlives a record that is removed or damaged.
//!
//! Each survivor is an empty file `survivors/<id>/<name>`: its name says all. Such a file needs no block, so a tmpfs without room takes
//! it, and it is never half written.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use penfold_process::{Pid, ProcFs, Process, ProcessId, ProcessPresence, StartTime, Stat, pid_from_raw};
use penfold_teardown::Survivor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::id::Id;
use crate::notes::open_private;

/// The directory below the state root.
const DIRECTORY: &str = "survivors";
/// The most survivors of one sandbox that are remembered: while one of them lives, the sandbox has not ended.
const MOST: usize = 1024;
/// The most survivors that are described one by one.
const NAMED: usize = 3;

/// A survivor that lives.
#[derive(Debug)]
pub enum LivingSurvivor {
    /// A process that `/proc` shows.
    Seen(Stat),
    /// A process that `/proc` hides (hidepid), with its pidfd.
    Hidden(Pid, OwnedFd),
}

impl LivingSurvivor {
    /// Returns the pid.
    pub fn pid(&self) -> Pid {
        match self {
            LivingSurvivor::Seen(stat) => stat.pid,
            LivingSurvivor::Hidden(pid, _) => *pid,
        }
    }

    /// Returns the identity, if `/proc` shows it.
    pub fn id(&self) -> Option<ProcessId> {
        match self {
            LivingSurvivor::Seen(stat) => Some(stat.id()),
            LivingSurvivor::Hidden(..) => None,
        }
    }

    /// Tells whether this user may not signal the process.
    pub fn is_refused(&self) -> bool {
        rustix::process::test_kill_process(self.pid()) == Err(Errno::PERM)
    }

    /// Describes the survivor, with the reason why it lives.
    pub fn describe(&self, proc: &mut ProcFs) -> Survivor {
        match self {
            LivingSurvivor::Seen(stat) => {
                let (state, wait_channel) = proc.waits(stat);
                let state = state.letter();
                let is_stuck = state == 'D';
                let reason = match self.is_refused() {
                    true => format!("cannot be signalled: {}", io::Error::from(Errno::PERM)),
                    false if is_stuck => "was sent SIGKILL and is stuck in the kernel".to_owned(),
                    false => "was sent SIGKILL and has not ended".to_owned(),
                };
                Survivor::Process {
                    pid: stat.pid.as_raw_pid(),
                    start_time: stat.start.0,
                    name: stat.comm.clone(),
                    state,
                    wait_channel,
                    reason,
                }
            }
            LivingSurvivor::Hidden(pid, _) => Survivor::hidden(*pid, proc.is_blind()),
        }
    }
}

/// Describes a few survivors, a sentence each.
pub fn describe_survivors(survivors: &[LivingSurvivor]) -> Vec<String> {
    let Ok(mut proc) = ProcFs::open() else { return Vec::new() };
    let mut sentences: Vec<String> =
        survivors.iter().take(NAMED).map(|alive| alive.describe(&mut proc).to_string()).collect();
    if survivors.len() > NAMED {
        sentences.push(format!("{} more members could not be ended", survivors.len() - NAMED));
    }
    sentences
}

/// The identity of a survivor in the name of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SurvivorIdentity {
    /// By the start time.
    Start(ProcessId),
    /// By the inode of its pidfd, which is unique since Linux 6.9; before, all pidfds have the same.
    Inode(Pid, u64),
}

impl SurvivorIdentity {
    fn name(self, boot: &str) -> String {
        match self {
            SurvivorIdentity::Start(id) => format!("{}-{}-{boot}", id.pid.as_raw_pid(), id.start.0),
            SurvivorIdentity::Inode(pid, inode) => format!("{}-i{inode}-{boot}", pid.as_raw_pid()),
        }
    }

    /// Reads the name of a file; `None` for one of another boot, whose processes are gone.
    fn of(name: &str, boot: &str) -> Option<SurvivorIdentity> {
        let mut parts = name.splitn(3, '-');
        let pid = pid_from_raw(parts.next()?.parse().ok()?)?;
        let identity = parts.next()?;
        if parts.next()? != boot {
            return None;
        }
        match identity.strip_prefix('i') {
            Some(inode) => Some(SurvivorIdentity::Inode(pid, inode.parse().ok()?)),
            None => {
                Some(SurvivorIdentity::Start(ProcessId { pid, start: StartTime(identity.parse().ok()?) }))
            }
        }
    }

    /// Looks for the process; `None` if it is gone.
    fn look(self, proc: &mut ProcFs) -> io::Result<Option<LivingSurvivor>> {
        match self {
            SurvivorIdentity::Start(id) => match proc.presence(id) {
                ProcessPresence::Alive(stat) => Ok(Some(LivingSurvivor::Seen(stat))),
                ProcessPresence::Gone => Ok(None),
                ProcessPresence::Unknown => {
                    Ok(open_living(id.pid)?.map(|pidfd| LivingSurvivor::Hidden(id.pid, pidfd)))
                }
            },
            SurvivorIdentity::Inode(pid, inode) => {
                let Some(pidfd) = open_living(pid)? else { return Ok(None) };
                if rustix::fs::fstat(&pidfd)?.st_ino != inode {
                    return Ok(None);
                }
                match Process::from_pidfd(proc, pidfd.try_clone()?, pid) {
                    Ok(None) => Ok(None),
                    Ok(Some(process)) => Ok(match proc.presence(process.id()) {
                        ProcessPresence::Alive(stat) => Some(LivingSurvivor::Seen(stat)),
                        ProcessPresence::Gone => None,
                        ProcessPresence::Unknown => Some(LivingSurvivor::Hidden(pid, pidfd)),
                    }),
                    Err(_) => Ok(Some(LivingSurvivor::Hidden(pid, pidfd))),
                }
            }
        }
    }
}

/// Opens the process that has this pid now, if there is one and it has not exited.
fn open_living(pid: Pid) -> io::Result<Option<OwnedFd>> {
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(Errno::SRCH | Errno::NOENT | Errno::INVAL) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    let has_exited = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())))? > 0;
    Ok((!has_exited).then_some(pidfd))
}

/// Remembers the processes among the survivors of sandbox `id`, besides those that were remembered before.
///
/// # Errors
/// When they cannot be written. Nothing is made without a state root.
pub(crate) fn write_survivors(root: &Path, id: &str, survivors: &[Survivor]) -> io::Result<()> {
    let identities: Vec<SurvivorIdentity> = survivors.iter().filter_map(identity).take(MOST).collect();
    if identities.is_empty() {
        return Ok(());
    }
    let boot = penfold_process::boot_id()?;
    let top = open_private(CWD, root)?;
    let mut dir = top;
    for name in [DIRECTORY, id] {
        match rustix::fs::mkdirat(&dir, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        dir = open_private(dir.as_fd(), Path::new(name))?;
    }
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for identity in identities {
        rustix::fs::openat(&dir, identity.name(&boot), flags, Mode::RUSR | Mode::WUSR)?;
    }
    Ok(())
}

fn identity(survivor: &Survivor) -> Option<SurvivorIdentity> {
    let Survivor::Process { pid, start_time, .. } = survivor else { return None };
    let pid = pid_from_raw(*pid)?;
    if *start_time > 0 {
        return Some(SurvivorIdentity::Start(ProcessId { pid, start: StartTime(*start_time) }));
    }
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    Some(SurvivorIdentity::Inode(pid, rustix::fs::fstat(&pidfd).ok()?.st_ino))
}

/// Returns the survivors of one sandbox that live.
///
/// # Errors
/// When they cannot be read: each may live.
pub fn living_survivors(root: &Path, id: &str) -> io::Result<Vec<LivingSurvivor>> {
    let Some(dir) = directory(root)? else { return Ok(Vec::new()) };
    let dir = match open_private(dir.as_fd(), Path::new(id)) {
        Ok(dir) => dir,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    read(&dir, &mut ProcFs::open()?, &penfold_process::boot_id()?)
}

/// Tells whether survivors of a sandbox were written down, dead or alive.
pub(crate) fn is_remembered(root: &Path, id: &str) -> bool {
    directory(root).ok().flatten().is_some_and(|dir| open_private(dir.as_fd(), Path::new(id)).is_ok())
}

/// Returns the sandboxes of a state root with survivors that live.
///
/// # Errors
/// When they cannot be read: each sandbox may have some.
pub(crate) fn all_living_survivors(root: &Path) -> io::Result<HashMap<String, Vec<LivingSurvivor>>> {
    directory(root)?.map_or_else(|| Ok(HashMap::new()), |dir| list(&dir))
}

fn list(dir: &OwnedFd) -> io::Result<HashMap<String, Vec<LivingSurvivor>>> {
    let (mut proc, boot) = (ProcFs::open()?, penfold_process::boot_id()?);
    let mut found = HashMap::new();
    for id in ids(dir)? {
        let dir = match open_private(dir.as_fd(), Path::new(&id)) {
            Ok(dir) => dir,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let living = read(&dir, &mut proc, &boot)?;
        if !living.is_empty() {
            found.insert(id, living);
        }
    }
    Ok(found)
}

fn ids(dir: &OwnedFd) -> io::Result<Vec<String>> {
    let mut ids = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        ids.extend(entry.file_name().to_str().ok().filter(|name| Id::is_short(name)).map(str::to_owned));
    }
    Ok(ids)
}

fn read(dir: &OwnedFd, proc: &mut ProcFs, boot: &str) -> io::Result<Vec<LivingSurvivor>> {
    let mut living = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let Some(identity) =
            entry.file_name().to_str().ok().and_then(|name| SurvivorIdentity::of(name, boot))
        else {
            continue;
        };
        living.extend(identity.look(proc)?);
    }
    living.sort_unstable_by_key(|alive| alive.pid().as_raw_pid());
    Ok(living)
}

/// Forgets the survivors of a sandbox: nothing of it is left.
///
/// # Errors
/// When they cannot be removed. Until they are, they are known to be dead by a look at each.
pub(crate) fn remove_survivors(root: &Path, id: &str) -> io::Result<()> {
    let Some(top) = directory(root)? else { return Ok(()) };
    let dir = match open_private(top.as_fd(), Path::new(id)) {
        Ok(dir) => dir,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            let _ = rustix::fs::unlinkat(&dir, name, AtFlags::empty());
        }
    }
    match rustix::fs::unlinkat(&top, id, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Forgets the survivors of all sandboxes that have none that lives.
///
/// # Errors
/// When they cannot be read or removed.
pub fn prune_survivors(root: &Path) -> io::Result<()> {
    let Some(dir) = directory(root)? else { return Ok(()) };
    let living = list(&dir)?;
    for id in ids(&dir)?.iter().filter(|id| !living.contains_key(*id)) {
        remove_survivors(root, id)?;
    }
    Ok(())
}

fn directory(root: &Path) -> io::Result<Option<OwnedFd>> {
    match open_private(CWD, root).and_then(|root| open_private(root.as_fd(), Path::new(DIRECTORY))) {
        Ok(dir) => Ok(Some(dir)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
