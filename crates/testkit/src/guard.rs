//! Nothing may be left when a test ends.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::proc;
use crate::snapshot::{Difference, Filter, HostSnapshot, Item, Kind};

/// How long what the kernel removes in the background may take ([`Kind::is_asynchronous`]).
const PATIENCE: Duration = Duration::from_secs(3);

/// Tests of one process take turns: a process can be told to be another test's only by who started it, and that
/// is one process under `cargo test`. Under nextest each test has its own, and nobody waits.
static TURN: Mutex<()> = Mutex::new(());

/// What a guard holds its test responsible for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// What descends from the test's process or carries one of its marks. Other tests may run beside it.
    Own,
    /// Everything on the host. Nothing else may run beside it.
    Host,
}

/// Compares the host at its start with the host at its end.
///
/// The test's process is made a subreaper for the guard's life, so that a daemon which the test left is found
/// as its descendant, whatever it hides. Processes, cgroups and paths must be gone at once when the test ends;
/// only what the kernel itself removes in the background is waited for.
///
/// In [`Scope::Own`] a cgroup is the test's when its path holds a mark. Where the names are not known beforehand, give
/// the tool a [`crate::DelegatedCgroup`] to start in and mark that: its leaves are below it then.
#[derive(Debug)]
pub struct LeakGuard {
    before: HostSnapshot,
    filter: Filter,
    scope: Scope,
    marks: Vec<String>,
    armed: bool,
    _turn: MutexGuard<'static, ()>,
}

impl Default for LeakGuard {
    fn default() -> LeakGuard {
        LeakGuard::new()
    }
}

impl LeakGuard {
    /// A guard over what the test itself makes.
    pub fn new() -> LeakGuard {
        LeakGuard::over(Scope::Own)
    }

    /// A guard over this much.
    pub fn over(scope: Scope) -> LeakGuard {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        // A host that refuses has a guard that sees less; it still sees marks.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let filter = Filter::penfold();
        let before = HostSnapshot::take(&filter);
        LeakGuard { before, filter, scope, marks: Vec::new(), armed: true, _turn: turn }
    }

    /// Also watches this directory: what appears in it from now on must go.
    pub fn watch(&mut self, directory: impl Into<PathBuf>) {
        let directory = directory.into();
        self.marks.push(directory.display().to_string());
        self.filter.directories.push(directory);
        let now = HostSnapshot::take(&self.filter);
        let directory = self.filter.directories.last();
        let inside = |item: &Item| {
            item.kind == Kind::Path && directory.is_some_and(|base| Path::new(&item.name).starts_with(base))
        };
        self.before.items.extend(now.items.into_iter().filter(inside));
    }

    /// Takes responsibility for whatever has this text in its name, environment or arguments: a sandbox's id, a
    /// tree's cookie, a link's name.
    pub fn mark(&mut self, text: impl Into<String>) {
        self.marks.push(text.into());
    }

    /// Panics and names each difference, if there is one.
    ///
    /// # Panics
    /// When something was left behind or, in [`Scope::Host`], has vanished.
    pub fn check(mut self) {
        self.armed = false;
        let found = self.differences();
        assert!(found.is_empty(), "{}", tell(&found));
    }

    /// What is different now.
    pub fn differences(&self) -> Vec<Difference> {
        let deadline = Instant::now() + PATIENCE;
        let at_once = self.look(|difference| !difference.kind.is_asynchronous());
        if !at_once.is_empty() {
            return at_once;
        }
        loop {
            let found = self.look(|difference| difference.kind.is_asynchronous());
            if found.is_empty() || Instant::now() >= deadline {
                return found;
            }
            sleep(Duration::from_millis(20));
        }
    }

    fn look(&self, wanted: impl Fn(&Difference) -> bool) -> Vec<Difference> {
        let now = HostSnapshot::take(&self.filter);
        let mine = self.mine();
        self.before
            .diff(&now)
            .into_iter()
            .filter(|difference| wanted(difference))
            .filter(|difference| self.scope == Scope::Host || self.is_mine(difference, &now, &mine))
            .collect()
    }

    /// The pids below the test's process.
    fn mine(&self) -> BTreeSet<i32> {
        match self.scope {
            Scope::Host => BTreeSet::new(),
            Scope::Own => {
                let own = proc::this().map_or(0, |stat| stat.id.pid);
                proc::descendants(&proc::all(), own)
            }
        }
    }

    fn is_mine(&self, difference: &Difference, now: &HostSnapshot, mine: &BTreeSet<i32>) -> bool {
        if !difference.appeared {
            return false;
        }
        if self.marks.iter().any(|mark| difference.name.contains(mark.as_str())) {
            return true;
        }
        let pid = now
            .items
            .iter()
            .find(|item| item.kind == difference.kind && item.name == difference.name)
            .and_then(|item| item.pid);
        pid.is_some_and(|pid| {
            mine.contains(&pid) || self.marks.iter().any(|mark| proc::carries(pid, mark.as_bytes()))
        })
    }
}

impl Drop for LeakGuard {
    fn drop(&mut self) {
        if !self.armed || std::thread::panicking() {
            return;
        }
        let found = self.differences();
        assert!(found.is_empty(), "{}", tell(&found));
    }
}

fn tell(found: &[Difference]) -> String {
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    format!("the host is not as it was:\n  {}", lines.join("\n  "))
}
