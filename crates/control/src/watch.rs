//! Watches the supervisors of a state root, and has a sandbox recovered that has lost all of them.
//!
//! For each sandbox the watcher polls the pidfd of one process that holds the record's lock. When that process exits, the
//! watcher looks for the next holder. If there is none, nobody else will end the sandbox: the watcher executes
//! `penfold watch --recover ID`. A process of its own, because the holder of a record's lock may be killed as a supervisor
//! that hangs, and a server must not be.
//!
//! The same for containers of `penfold oci` whose `delete` was refused, as their engine may have forgotten them: once a second, while there are any, the
//! watcher executes `penfold watch --containers`, which ends those of which no process lives any more.
//!
//! The watcher holds no lock. Two watchers, or one that is stopped, change nothing for the sandboxes. Without changes in the
//! state root, no timer runs.

mod entry;

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use penfold_process::Pid;
use penfold_state::record::Registry;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::timeout::poll_timeout;
use entry::WatchedRecord;

/// The watcher looks at new records this long after a change: most sandboxes in the foreground have ended by then.
const SETTLE: Duration = Duration::from_millis(100);
/// The watcher looks this often where the kernel notifies of no changes (`fs.inotify.max_user_instances`).
const BLIND: Duration = Duration::from_millis(500);
/// The time between two looks at containers whose `delete` was refused, while there are any.
const CONTAINERS: Duration = Duration::from_secs(1);
/// The most recoveries at one time.
const RECOVERIES: usize = 8;

/// The settings of a watcher.
#[derive(Debug, Clone)]
pub struct WatchSettings {
    /// The directory with the records.
    pub state_root: PathBuf,
    /// The penfold program, which recovers.
    pub program: PathBuf,
}

/// A finding of a watcher.
#[derive(Debug, PartialEq, Eq)]
pub enum WatchEvent<'a> {
    /// The sandboxes that were lost before the start were recovered, or it was tried.
    Ready,
    /// This sandbox has lost its supervisors.
    Lost(&'a str),
    /// This lost sandbox is gone: this was verified.
    Recovered(&'a str),
    /// Something of this lost sandbox may be left; the watcher tries again later.
    Unrecovered(&'a str),
}

/// Watches until `stop` is readable.
///
/// # Errors
/// When the records cannot be opened or listed at the start, or poll(2) fails.
pub fn watch_sandboxes(
    settings: &WatchSettings,
    stop: BorrowedFd<'_>,
    tell: &mut dyn FnMut(WatchEvent<'_>),
) -> io::Result<()> {
    let registry = Registry::open(&settings.state_root).map_err(io::Error::other)?;
    let changes = changes_below(&settings.state_root);
    let mut watcher = Watcher {
        settings,
        registry,
        changes,
        scan_at: None,
        containers_at: None,
        entries: HashMap::new(),
        recoveries: Vec::new(),
        first: None,
        tell,
    };
    watcher.scan()?;
    watcher.first = Some(watcher.lost());
    loop {
        watcher.begin_recoveries();
        watcher.announce_ready();
        if !watcher.wait(stop)? {
            return Ok(());
        }
    }
}

/// A descriptor that is readable after a change among the records.
fn changes_below(root: &Path) -> Option<OwnedFd> {
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    // A life that begins in the record of a former one changes the times of the record.
    let flags = WatchFlags::ATTRIB
        | WatchFlags::CREATE
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    inotify::add_watch(&inotify, root.join("sandboxes"), flags).ok()?;
    // The directory of the containers is made with the first one.
    let _ = inotify::add_watch(&inotify, root, WatchFlags::CREATE | WatchFlags::ONLYDIR);
    watch_containers(&inotify, root);
    Some(inotify)
}

fn watch_containers(inotify: &OwnedFd, root: &Path) {
    let _ = inotify::add_watch(inotify, root.join("oci"), WatchFlags::CREATE | WatchFlags::ONLYDIR);
}

/// A process that recovers sandboxes.
struct RecoveryProcess {
    child: Child,
    pidfd: OwnedFd,
    /// The sandboxes; none if it ends containers.
    names: Vec<String>,
}

struct Watcher<'a> {
    settings: &'a WatchSettings,
    registry: Registry,
    changes: Option<OwnedFd>,
    /// When to list the records again.
    scan_at: Option<Instant>,
    /// When to look at containers again.
    containers_at: Option<Instant>,
    entries: HashMap<String, WatchedRecord>,
    recoveries: Vec<RecoveryProcess>,
    /// The sandboxes that were lost at the start and are not recovered yet; `None` once [`WatchEvent::Ready`] was told.
    first: Option<HashSet<String>>,
    tell: &'a mut dyn FnMut(WatchEvent<'_>),
}

impl Watcher<'_> {
    /// Lists the records, looks at new ones and forgets those that are gone.
    fn scan(&mut self) -> io::Result<()> {
        self.scan_at = None;
        if let Some(changes) = &self.changes {
            let mut events = [0_u8; 4096];
            while rustix::io::read(changes, &mut events).is_ok_and(|length| length > 0) {}
        }
        if let Some(changes) = &self.changes {
            watch_containers(changes, &self.settings.state_root);
        }
        if self.containers_at.is_none() {
            self.complete_containers();
        }
        if self.registry_moved() {
            self.registry = Registry::open(&self.settings.state_root).map_err(io::Error::other)?;
            self.changes = changes_below(&self.settings.state_root);
        }
        let names: HashSet<String> = self.registry.names()?.into_iter().collect();
        self.entries.retain(|name, entry| names.contains(name) || matches!(entry, WatchedRecord::Recovering));
        for name in names {
            let entry = self.entries.get(&name);
            if entry.is_none_or(|entry| entry.has_begun_anew(&self.registry, &name)) {
                self.look(name, WatchedRecord::FIRST);
            }
        }
        Ok(())
    }

    /// Has containers ended whose `delete` was refused, if there are any.
    fn complete_containers(&mut self) {
        self.containers_at = None;
        if penfold_oci::have_refused(&self.settings.state_root) {
            self.containers_at = Some(Instant::now() + CONTAINERS);
            let is_running = self.recoveries.iter().any(|recovery| recovery.names.is_empty());
            self.recoveries
                .extend((!is_running).then(|| start(self.settings, "--containers", &[]).ok()).flatten());
        }
    }

    /// Whether the path of the records has become another directory.
    fn registry_moved(&self) -> bool {
        let place = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let path = rustix::fs::stat(self.settings.state_root.join("sandboxes")).map(place);
        path.ok() != rustix::fs::fstat(&self.registry).map(place).ok()
    }

    fn look(&mut self, name: String, delay: Duration) {
        let entry = WatchedRecord::look(&self.registry, &name, delay);
        if matches!(entry, WatchedRecord::Lost) {
            (self.tell)(WatchEvent::Lost(&name));
        }
        self.entries.insert(name, entry);
    }

    fn lost(&self) -> HashSet<String> {
        let lost = self.entries.iter().filter(|(_, entry)| matches!(entry, WatchedRecord::Lost));
        lost.map(|(name, _)| name.clone()).collect()
    }

    /// Starts processes for the lost sandboxes, which are divided among them.
    fn begin_recoveries(&mut self) {
        let lost: Vec<String> = self.lost().into_iter().collect();
        let free = RECOVERIES.saturating_sub(self.recoveries.len());
        if lost.is_empty() || free == 0 {
            return;
        }
        for names in lost.chunks(lost.len().div_ceil(free)) {
            let begun = start(self.settings, "--recover", names);
            for name in names {
                let entry = if begun.is_ok() {
                    WatchedRecord::Recovering
                } else {
                    WatchedRecord::later(WatchedRecord::FIRST)
                };
                self.entries.insert(name.clone(), entry);
            }
            self.recoveries.extend(begun);
        }
    }

    fn announce_ready(&mut self) {
        if self.first.as_ref().is_some_and(HashSet::is_empty) {
            self.first = None;
            (self.tell)(WatchEvent::Ready);
        }
    }

    /// Waits for a change, and looks at what has changed. False if the watcher is to stop.
    fn wait(&mut self, stop: BorrowedFd<'_>) -> io::Result<bool> {
        if self.changes.is_none() {
            self.scan_at.get_or_insert_with(|| Instant::now() + BLIND);
        }
        let timers =
            self.entries.values().filter_map(WatchedRecord::at).chain(self.scan_at).chain(self.containers_at);
        let timeout = timers.min().and_then(|at| poll_timeout(at.saturating_duration_since(Instant::now())));
        let mut names = Vec::new();
        let mut fds = vec![PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        let changes = self.changes.as_ref().filter(|_| self.scan_at.is_none()).map_or(stop, AsFd::as_fd);
        fds.push(PollFd::from_borrowed_fd(changes, PollFlags::IN));
        fds.extend(self.recoveries.iter().map(|recovery| PollFd::new(&recovery.pidfd, PollFlags::IN)));
        for (name, entry) in &self.entries {
            if let WatchedRecord::Guarded(pidfd) = entry {
                names.push(name.clone());
                fds.push(PollFd::new(pidfd, PollFlags::IN));
            }
        }
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, timeout.as_ref()))?;
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<bool>>().into_iter();
        if ready.next() == Some(true) {
            return Ok(false);
        }
        if ready.next() == Some(true) {
            self.scan_at = Some(Instant::now() + SETTLE);
        }
        let ended: Vec<bool> = ready.by_ref().take(self.recoveries.len()).collect();
        for name in names.into_iter().zip(ready).filter_map(|(name, ready)| ready.then_some(name)) {
            self.look(name, WatchedRecord::FIRST);
        }
        self.end_recoveries(&ended);
        self.act_on_timers();
        Ok(true)
    }

    fn act_on_timers(&mut self) {
        let now = Instant::now();
        if self.containers_at.is_some_and(|at| at <= now) {
            self.complete_containers();
        }
        let due = self.entries.iter().filter_map(|(name, entry)| Some((name.clone(), entry.due(now)?)));
        for (name, delay) in due.collect::<Vec<_>>() {
            self.look(name, delay);
        }
        if self.scan_at.is_some_and(|at| at <= now) && self.scan().is_err() {
            // The state root was replaced or cannot be read for now.
            self.scan_at = Some(now + BLIND);
        }
    }

    fn end_recoveries(&mut self, ended: &[bool]) {
        for index in (0..self.recoveries.len()).rev().filter(|&index| ended.get(index) == Some(&true)) {
            let mut recovery = self.recoveries.swap_remove(index);
            // It has exited; a status says nothing that the record does not say.
            let _ = recovery.child.wait();
            for name in recovery.names {
                let entry = WatchedRecord::look(&self.registry, &name, WatchedRecord::FIRST);
                let is_lost = matches!(entry, WatchedRecord::Lost);
                (self.tell)(if is_lost {
                    WatchEvent::Unrecovered(&name)
                } else {
                    WatchEvent::Recovered(&name)
                });
                if let Some(first) = &mut self.first {
                    first.remove(&name);
                }
                self.entries
                    .insert(name, if is_lost { WatchedRecord::later(WatchedRecord::AGAIN) } else { entry });
            }
        }
    }
}

/// Starts `penfold watch` with this flag.
fn start(settings: &WatchSettings, flag: &str, names: &[String]) -> io::Result<RecoveryProcess> {
    let mut command = Command::new(&settings.program);
    command.arg0("penfold").arg("--root").arg(&settings.state_root).args(["watch", flag]).args(names);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    // Not reaped, so that the number is its own.
    let pid =
        i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| io::Error::other("no pid"))?;
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Ok(RecoveryProcess { child, pidfd, names: names.to_vec() }),
        Err(errno) => {
            let _ = child.wait();
            Err(errno.into())
        }
    }
}
