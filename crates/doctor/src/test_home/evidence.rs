//! The evidence that a process uses the home of a test.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penfold_process::names::SUPERVISOR;
use penfold_process::{EnvironmentMatch as Found, Pid, ProcFs, Stat};
use penfold_teardown::MARKER;
use serde::Serialize;

use super::{Look, TestHome, leads_to, links};
use penfold_control::descent::Descent;

/// What shows that a process uses a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// Its environment names a sandbox with a record below the directory.
    Marker,
    /// Its working directory, or its root directory, is below.
    WorkingDirectory,
    /// Its program is below.
    Program,
    /// It has a file open that is below, or was when it was removed.
    OpenFile,
    /// It has mapped a file that is below.
    MappedFile,
    /// Its arguments name the directory, it belongs to the directory's user, and it started after the directory was made.
    Arguments,
}

/// The longest time by which a start may seem earlier than it was: `/proc` counts ticks of 10 ms.
const TICK: Duration = Duration::from_millis(10);

/// Looks at all processes once.
pub(super) fn look_at_processes(home: &TestHome, ids: &BTreeSet<String>) -> io::Result<Look> {
    let mut proc = ProcFs::open()?;
    let mut all = Vec::new();
    let completeness = proc.scan(|stat| {
        if !stat.is_kernel_thread() && !stat.is_dead() {
            all.push(stat);
        }
    })?;
    let own = proc.stat(rustix::process::getpid())?.ok_or(io::ErrorKind::NotFound)?;
    let mut ancestors: HashSet<Pid> = proc.ancestors(&own)?.into_iter().map(|id| id.pid).collect();
    ancestors.extend([own.pid, Pid::INIT]);
    let mut searcher = Searcher {
        home,
        ids,
        proc,
        descent: Descent::new()?,
        ancestors,
        namespace: std::fs::read_link("/proc/self/ns/mnt").ok(),
    };
    let mut look = Look { found: Vec::new(), ancestors: Vec::new(), elsewhere: Vec::new(), completeness };
    for stat in all {
        let Some(evidence) = searcher.evidence(&stat) else { continue };
        if searcher.ancestors.contains(&stat.pid) {
            look.ancestors.push(stat);
        } else if searcher.belongs_elsewhere(&stat) {
            look.elsewhere.push(stat);
        } else {
            look.found.push((stat, evidence));
        }
    }
    Ok(look)
}

struct Searcher<'a> {
    home: &'a TestHome,
    ids: &'a BTreeSet<String>,
    proc: ProcFs,
    descent: Descent,
    /// This process, its ancestors, and pid 1.
    ancestors: HashSet<Pid>,
    /// The mount namespace of this process.
    namespace: Option<PathBuf>,
}

impl Searcher<'_> {
    fn evidence(&mut self, stat: &Stat) -> Option<Evidence> {
        let home = self.home;
        let path = home.path();
        let places = links::process_directories(stat);
        let any = |test: &dyn Fn(&Path) -> bool| places.iter().any(|place| test(place));
        let evidence = if any(&|place| {
            links::leads_below(&place.join("cwd"), path) || links::leads_below(&place.join("root"), path)
        }) {
            Evidence::WorkingDirectory
        } else if any(&|place| links::leads_below(&place.join("exe"), path)) {
            Evidence::Program
        } else if any(&|place| links::holds_below(place, path)) {
            Evidence::OpenFile
        } else if any(&|place| links::maps_below(place, path)) {
            Evidence::MappedFile
        } else if self.is_marked(stat) {
            return Some(Evidence::Marker);
        } else if self.is_of_the_home(stat) && any(&|place| self.is_named_at(place)) {
            Evidence::Arguments
        } else {
            return None;
        };
        // In another mount namespace the same path may be another directory.
        any(&|place| self.sees_the_home(place)).then_some(evidence)
    }

    /// Tells whether a process carries the marker of a sandbox of the home. A process that is older has copied nothing.
    fn is_marked(&mut self, stat: &Stat) -> bool {
        let ids = self.ids;
        if ids.is_empty() || !self.may_be_younger(stat, TICK) {
            return false;
        }
        let names = |value: &[u8]| {
            value
                .split(|&byte| byte == b':')
                .any(|id| std::str::from_utf8(id).is_ok_and(|id| ids.contains(id)))
        };
        self.proc.environ_has(stat.pid, MARKER.as_bytes(), names) == Found::Yes
    }

    /// Tells whether a process has the user of the home, and certainly started after the home was made.
    fn is_of_the_home(&mut self, stat: &Stat) -> bool {
        let Some(directory) = &self.home.directory else { return false };
        if directory.made.is_none() || !self.may_be_younger(stat, Duration::ZERO) {
            return false;
        }
        let owner = directory.owner;
        self.proc.status(stat.pid).is_ok_and(|status| status.is_some_and(|status| status.uids[0] == owner))
    }

    /// Tells whether a process started after the home was made; true if that time is unknown.
    fn may_be_younger(&self, stat: &Stat, tolerance: Duration) -> bool {
        let made = self.home.directory.as_ref().and_then(|directory| directory.made);
        made.is_none_or(|made| stat.start.since_boot() + tolerance > made)
    }

    fn is_named_at(&self, place: &Path) -> bool {
        let text = std::fs::read(place.join("cmdline")).unwrap_or_default();
        text.split(|&byte| byte == 0)
            .any(|argument| self.home.names.iter().any(|path| links::names_path(argument, path)))
    }

    /// Tells whether the path of the home means the home for this process too.
    fn sees_the_home(&self, place: &Path) -> bool {
        let namespace = std::fs::read_link(place.join("ns/mnt")).ok();
        if namespace.is_some() && namespace == self.namespace {
            return true;
        }
        let Some(directory) = &self.home.directory else { return false };
        let mut inside = OsString::from(place.join("root"));
        inside.push(self.home.path());
        leads_to(directory, Path::new(&inside))
    }

    /// Tells whether a process belongs to a living sandbox whose record is elsewhere, and in which this process is not.
    ///
    /// Such a sandbox is ended by its own id, if at all.
    fn belongs_elsewhere(&mut self, stat: &Stat) -> bool {
        let own = rustix::process::getpid();
        if let Some(id) = self.descent.held_leaf(stat.pid)
            && !self.ids.contains(&id)
            && self.descent.held_leaf(own).as_ref() != Some(&id)
        {
            return true;
        }
        for above in self.descent.penfolds(stat.pid) {
            if self.ancestors.contains(&above.pid) {
                return false;
            }
            let Ok(records) = links::open_records(above.pid) else { return true };
            if records.iter().any(|record| record.starts_with(self.home.path())) {
                return false;
            }
            if above.comm == SUPERVISOR || !records.is_empty() {
                return true;
            }
            // A sweep that runs at the same time.
            if above.pid == stat.pid && is_a_sweep(stat.pid) {
                return true;
            }
        }
        false
    }
}

/// Tells whether a penfold process runs `reap`.
fn is_a_sweep(pid: Pid) -> bool {
    let text = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_pid())).unwrap_or_default();
    text.split(|&byte| byte == 0).any(|word| word == b"reap")
}
