//! A tree that this program starts and ends, for programs that have no supervisor.

use std::io;
use std::ops::ControlFlow;
use std::process::{Child, Command};
use std::time::Duration;

use penfold_cgroup::{Leaf, Place};
use penfold_process::{Pid, ProcFs, ProcessId};
use penfold_sys::child::Exit;
use rustix::event::{PollFd, Timespec};

use crate::drive::{Host, StopPolicy, drive};
use crate::lifecycle::{Event, Phase};
use crate::members::{Leader, Scope, Teardown};
use crate::report::{Findings, Level, Survivor};
use crate::resource::Resource;
use crate::selector::{Search, Selector};

/// A child and all processes that it starts.
///
/// The tree is in a cgroup leaf if the host allows one. Otherwise, at [`Level::Tree`], the child is made a subreaper, so that a
/// daemon that loses its parent stays below the child while the child lives. The child also gets the variable `PENFOLD_SPAWNED`, by which
/// daemons are found later.
///
/// Once the child has ended, nothing proves at this level that no daemon is left: one may have emptied its environment. Then
/// [`end`](Spawned::end) is never [`verified`](Findings::verified), and the survivors have a [`Survivor::Unknown`] that says so. A
/// program that needs the proof on such a host should run `penfold run` instead, which adds a subreaper of its own.
///
/// Dropping the value ends nothing, like dropping a [`Child`]; the leaf then stays until somebody removes it.
#[derive(Debug)]
pub struct Spawned {
    child: Child,
    id: ProcessId,
    teardown: Teardown,
    level: Level,
    /// Whether the first look of the first end could see all members; `None` before.
    saw_all: Option<bool>,
}

/// The variable that a child gets where there is no cgroup.
const VARIABLE: &str = "PENFOLD_SPAWNED";
/// Why an end cannot be verified.
const UNSEEN: &str =
    "the child ended before this end, and a daemon that it left cannot be seen without a cgroup";

impl Spawned {
    /// Starts a command. The child stops before its first instruction until its membership in the leaf is verified.
    ///
    /// # Errors
    /// Those of the spawn; nothing is left then.
    pub fn start(command: &mut Command) -> io::Result<Spawned> {
        let mut proc = ProcFs::open()?;
        let name = format!("penfold-spawned-{}-{}", std::process::id(), fresh());
        let leaf = Place::find_here().ok().and_then(|place| Leaf::create(&place, &name).ok());
        let launched = match &leaf {
            Some(leaf) => penfold_sys::launch::spawn_joined(command, leaf.processes_file()?),
            None => penfold_sys::launch::spawn_subreaper(command.env(VARIABLE, &name)),
        };
        let child = match launched {
            Ok(child) => child,
            Err(error) => {
                if let Some(leaf) = leaf {
                    let _ = leaf.remove();
                }
                return Err(error);
            }
        };
        let pid =
            i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(io::Error::last_os_error)?;
        // No other process reaps the child, so `/proc` still has its identity even after its exit.
        let stat = proc.stat(pid)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let process = Selector::Process(stat.id());
        let (selector, level) = if leaf.is_some() {
            (process, Level::Cgroup)
        } else {
            let variable = Selector::Environment { key: VARIABLE.into(), value: name.into_bytes() };
            (Selector::Any(vec![process, variable]), Level::Tree)
        };
        let search = Search::new(selector, &mut proc)?;
        let mut teardown = Teardown::new(proc, leaf, Scope::Host(Box::new(search)));
        // Else the members that the kernel kills with their cgroup would have no name.
        teardown.want_details();
        teardown.lead_by(Leader { pid, session: stat.session });
        Ok(Spawned { child, id: stat.id(), teardown, level, saw_all: None })
    }

    /// Returns the child, for its exit status and its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Returns how membership is known.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Ends the tree: asks, kills, verifies, and returns its findings. The child is reaped.
    ///
    /// Members that the child has left behind, or that had left its session, are [strays](Findings::strays).
    ///
    /// # Errors
    /// When the child cannot be waited for. The findings are lost then, but the tree was ended.
    pub fn end(&mut self, stop_policy: &StopPolicy) -> io::Result<Findings> {
        let saw_all = match self.saw_all {
            Some(saw_all) => saw_all,
            None => self.look_first(),
        };
        let mut findings = end(&mut self.teardown, stop_policy, &mut []);
        if !saw_all {
            findings.verified = false;
            findings.survivors.push(Survivor::Unknown { reason: UNSEEN.to_owned() });
        }
        self.child.try_wait()?;
        Ok(findings)
    }

    /// Looks before anything is asked or killed; true if the look could see all members.
    ///
    /// While the child lives, all that it has started is below it. A process whose parent dies during a look is missed by that look
    /// and not by the next one.
    fn look_first(&mut self) -> bool {
        self.teardown.members();
        self.teardown.members();
        let child = self.teardown.proc().stat(self.id.pid);
        let lives = matches!(child, Ok(Some(stat)) if stat.id() == self.id && !stat.is_dead());
        if !lives {
            self.teardown.outlived();
        }
        let saw_all = lives || self.level != Level::Tree;
        self.saw_all = Some(saw_all);
        saw_all
    }
}

/// Returns a number that no other tree of this process has: the time since boot, in nanoseconds.
fn fresh() -> u128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u128::from(now.tv_sec.unsigned_abs()) * 1_000_000_000 + u128::from(now.tv_nsec.unsigned_abs())
}

/// Ends the members synchronously, then releases the resources.
///
/// The function asks first if the stop policy has a grace, and gives up when the patience is over.
///
/// With [`Scope::Host`], the findings are those of the search: what no look could know as a member is not looked for. Such is a daemon
/// that had lost its parent before the first look, where the selector names a process.
pub fn end(
    teardown: &mut Teardown,
    stop_policy: &StopPolicy,
    resources: &mut [Box<dyn Resource>],
) -> Findings {
    drive(teardown, Phase::Running, &mut Blocking { stop_policy: *stop_policy, asked: false }, resources)
}

/// A host that requests the end at once and gives up when a member is stuck.
struct Blocking {
    stop_policy: StopPolicy,
    asked: bool,
}

impl Host for Blocking {
    fn wait(&mut self, mut watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> Option<Event> {
        if !self.asked {
            self.asked = true;
            let now = self.stop_policy.grace.is_zero();
            return Some(if now { Event::KillRequested } else { Event::StopRequested });
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let _ = rustix::event::poll(&mut watch, timeout.as_ref());
        None
    }

    fn stop_policy(&self) -> StopPolicy {
        self.stop_policy
    }

    fn stuck(&mut self, _: &Findings, _: Option<Exit>) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}
