//! A guard against leaks at the end of a test.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::proc;
use crate::reap_on_drop::report;
use crate::snapshot::{Difference, Filter, HostSnapshot};
use crate::turn::Turn;

/// The time that the kernel may take for removals in the background ([`Kind::is_asynchronous`](crate::snapshot::Kind::is_asynchronous)).
const PATIENCE: Duration = Duration::from_secs(3);

/// The things for which a guard holds its test responsible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Processes below the test's process, and things with one of its marks. Other tests may run at the same time.
    Own,
    /// Everything on the host. Nothing else may run at the same time.
    Host,
}

/// Compares the host at its start with the host at its end.
///
/// For the guard's life, the test's process is a subreaper. The guard thus finds a daemon that the test left as a
/// descendant, even if the daemon hides its marks. Processes, cgroups and paths must be gone at once when the test
/// ends. The guard waits only for removals that the kernel does in the background.
///
/// The guard ends and reaps nothing: [`ReapOnDrop`](crate::ReapOnDrop) does. Make that one first, so that it is dropped last. A
/// guard that is dropped during a panic writes the differences to standard error, and does not panic again.
///
/// In [`Scope::Own`] a cgroup belongs to the test if its path contains a mark. If the names are not known in advance,
/// start the tool in a [`crate::DelegatedCgroup`] and mark that: the tool's leaves are then below it.
#[derive(Debug)]
pub struct LeakGuard {
    before: HostSnapshot,
    filter: Filter,
    scope: Scope,
    marks: Vec<String>,
    armed: bool,
    _turn: Turn,
}

impl Default for LeakGuard {
    fn default() -> LeakGuard {
        LeakGuard::new()
    }
}

impl LeakGuard {
    /// Creates a guard over the things that the test itself makes.
    pub fn new() -> LeakGuard {
        LeakGuard::over(Scope::Own)
    }

    /// Creates a guard over this scope.
    pub fn over(scope: Scope) -> LeakGuard {
        let turn = Turn::take();
        // If the host refuses, the guard sees less; it still sees marks.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let filter = Filter::penfold();
        let before = HostSnapshot::take(&filter);
        LeakGuard { before, filter, scope, marks: Vec::new(), armed: true, _turn: turn }
    }

    /// Also watches this directory: entries that appear from now on must go.
    pub fn watch(&mut self, directory: impl Into<PathBuf>) {
        let directory = directory.into();
        self.marks.push(directory.display().to_string());
        self.before.add_below(&directory);
        self.filter.directories.push(directory);
    }

    /// Takes responsibility for everything with this text in its name, environment or arguments: a sandbox's id, a
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

    /// Returns the differences between then and now.
    pub fn differences(&self) -> Vec<Difference> {
        let deadline = Instant::now() + PATIENCE;
        let (mut asynchronous, at_once): (Vec<_>, Vec<_>) =
            self.look().into_iter().partition(|difference| difference.kind.is_asynchronous());
        if !at_once.is_empty() {
            return at_once;
        }
        while !asynchronous.is_empty() && Instant::now() < deadline {
            sleep(Duration::from_millis(20));
            asynchronous = self.look();
            asynchronous.retain(|difference| difference.kind.is_asynchronous());
        }
        asynchronous
    }

    fn look(&self) -> Vec<Difference> {
        let now = HostSnapshot::take(&self.filter);
        let mine = self.mine();
        self.before
            .diff(&now)
            .into_iter()
            .filter(|difference| self.scope == Scope::Host || self.is_mine(difference, &now, &mine))
            .collect()
    }

    /// Returns the pids below the test's process.
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
        if !self.armed {
            return;
        }
        let found = self.differences();
        if std::thread::panicking() && !found.is_empty() {
            report(&tell(&found));
        } else {
            assert!(found.is_empty(), "{}", tell(&found));
        }
    }
}

fn tell(found: &[Difference]) -> String {
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    format!("the host has changed:\n  {}", lines.join("\n  "))
}
