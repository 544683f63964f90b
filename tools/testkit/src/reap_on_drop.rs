//! Ends what a test has started.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitId, WaitIdOptions};

use crate::proc::{self, Handle, Identity, Stat};
use crate::turn::Turn;

/// The time in which all processes must end after SIGKILL.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two looks, and the number of looks that must find nothing. A look may miss a process that forks, exits
/// and is adopted meanwhile.
const PAUSE: Duration = Duration::from_millis(2);
const LOOKS: u32 = 3;

/// Ends every process that this process has started since, when it is dropped: also when the test panics.
///
/// Make it before the test starts anything: a test that fails between the start of a process and the guard leaves the process.
/// The process of the test becomes a subreaper, so a daemon stays below it and is found, whatever it has done to its session,
/// group or environment. Processes that existed before are left alone, with all that they start.
///
/// What had to be ended is written to standard error. A [`std::process::Child`] of the test keeps its exit status.
///
/// # Panics
/// The drop panics if a process could not be ended. During a panic it writes the same to standard error instead.
///
/// ```no_run
/// let _reaper = penfold_testkit::ReapOnDrop::new();
/// let server = std::process::Command::new("my-server").arg("--daemonize").status()?;
/// assert!(server.success());
/// // Whatever the assertions say, the daemon ends here.
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ReapOnDrop {
    before: BTreeSet<Identity>,
    grace: Duration,
    _turn: Turn,
}

impl Default for ReapOnDrop {
    fn default() -> ReapOnDrop {
        ReapOnDrop::new()
    }
}

impl ReapOnDrop {
    /// Notes the processes that exist below this process. These are never ended.
    pub fn new() -> ReapOnDrop {
        let turn = Turn::take();
        // If the host refuses, daemons that leave are missed.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let list = proc::all();
        let own = proc::this().map_or(0, |stat| stat.id.pid);
        let below = proc::descendants(&list, own);
        let before = list.iter().map(|stat| stat.id).filter(|id| below.contains(&id.pid)).collect();
        ReapOnDrop { before, grace: Duration::ZERO, _turn: turn }
    }

    /// Sends SIGTERM first, and SIGKILL after this time. With it, `penfold run` and other tools clean up after themselves.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> ReapOnDrop {
        self.grace = grace;
        self
    }

    /// Returns the processes that would be ended now.
    pub fn living(&self) -> Vec<Stat> {
        let list = proc::all();
        let Ok(own) = proc::this().map(|stat| stat.id.pid) else { return Vec::new() };
        // An older process and what it starts are not of this test.
        let others: BTreeSet<i32> = self.before.iter().map(|id| id.pid).collect();
        let is_older = |stat: &Stat| self.before.contains(&stat.id);
        let below = proc::descendants_without(&list, own, &others);
        list.into_iter()
            .filter(|stat| below.contains(&stat.id.pid) && !is_older(stat) && !stat.is_dead())
            .collect()
    }

    /// Ends all, and returns the names of the ended processes.
    fn end(&self) -> Result<Vec<String>, Vec<String>> {
        // Where nothing can be read, everything looks as if it had ended.
        if let Err(error) = proc::this() {
            return Err(vec![format!("no process can be seen: cannot read `/proc/self/stat`: {error}")]);
        }
        let mut named = BTreeMap::new();
        let mut handles = BTreeMap::new();
        let polite = Instant::now() + self.grace;
        let deadline = polite + PATIENCE;
        let mut empty = 0;
        while empty < LOOKS {
            let now = Instant::now();
            let left = self.living();
            empty = if left.is_empty() { empty + 1 } else { 0 };
            if now >= deadline && !left.is_empty() {
                return Err(left.iter().map(describe).collect());
            }
            for stat in left {
                let is_new = !named.contains_key(&stat.id);
                if is_new {
                    named.insert(stat.id, describe(&stat));
                }
                let signal = if now < polite { Signal::TERM } else { Signal::KILL };
                if (is_new || signal == Signal::KILL)
                    && let Ok(Some(handle)) = Handle::open(stat.id)
                {
                    drop(handle.signal(signal));
                    // The first parent: later, all parents that have ended are replaced by this process.
                    handles.entry(stat.id).or_insert((handle, stat.parent));
                }
            }
            reap_adopted(&mut handles);
            sleep(PAUSE);
        }
        Ok(named.into_values().collect())
    }
}

/// Reaps processes that this process has adopted. Its own children belong to the test, which may want their status.
fn reap_adopted(handles: &mut BTreeMap<Identity, (Handle, i32)>) {
    let own = proc::this().map_or(0, |stat| stat.id.pid);
    handles.retain(|_, (handle, parent)| {
        if handle.has_ended() && *parent != own {
            let id = WaitId::PidFd(handle.pidfd());
            let _ = rustix::process::waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
        !handle.has_ended()
    });
}

fn describe(stat: &Stat) -> String {
    format!("{} {}", stat.id, proc::command_line(stat))
}

impl Drop for ReapOnDrop {
    fn drop(&mut self) {
        match self.end() {
            Ok(ended) if ended.is_empty() => {}
            Ok(ended) => report(&format!("ended what the test had left:\n  {}", ended.join("\n  "))),
            Err(left) => {
                let text = format!("cannot end what the test has left:\n  {}", left.join("\n  "));
                assert!(std::thread::panicking(), "{text}");
                report(&text);
            }
        }
    }
}

/// Writes to standard error. `eprintln!` would panic when that is closed, perhaps during another panic.
pub(crate) fn report(text: &str) {
    drop(std::io::stderr().write_all(format!("{text}\n").as_bytes()));
}
