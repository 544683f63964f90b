//! A tree that this program starts and ends, for programs that have no supervisor.

use std::io;
use std::ops::ControlFlow;
use std::process::{Child, Command};
use std::time::Duration;

use penfold_cgroup::{Leaf, Place};
use penfold_process::{Pid, ProcFs};
use penfold_sys::child::Exit;
use rustix::event::{PollFd, Timespec};

use crate::drive::{Host, StopPolicy, drive};
use crate::lifecycle::{Event, Phase};
use crate::members::{Scope, Teardown};
use crate::report::{Findings, Level};
use crate::resource::Resource;
use crate::selector::{Search, Selector};

/// A child and all processes that it starts.
///
/// The tree is in a cgroup leaf if the host allows one. Otherwise its members are the descendants of the child, and a
/// daemon that lost its parent before the end is missed. A program that must end such daemons on such a host should run
/// `penfold run` instead, which adds a subreaper.
///
/// Dropping the value ends nothing, like dropping a [`Child`]; the leaf then stays until somebody removes it.
#[derive(Debug)]
pub struct Spawned {
    child: Child,
    teardown: Teardown,
    level: Level,
}

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
            None => command.spawn(),
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
        let search = Search::new(Selector::Process(stat.id()), &mut proc)?;
        let level = if leaf.is_some() { Level::Cgroup } else { Level::Tree };
        Ok(Spawned { child, teardown: Teardown::new(proc, leaf, Scope::Host(Box::new(search))), level })
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
    /// # Errors
    /// When the child cannot be waited for. The findings are lost then, but the tree was ended.
    pub fn end(&mut self, stop_policy: &StopPolicy) -> io::Result<Findings> {
        let findings = end(&mut self.teardown, stop_policy, &mut []);
        self.child.try_wait()?;
        Ok(findings)
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
