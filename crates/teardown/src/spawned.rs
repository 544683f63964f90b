//! A tree that this program starts and ends, for programs that are no supervisor.

use std::io;
use std::ops::ControlFlow;
use std::process::{Child, Command};
use std::time::Duration;

use penfold_cgroup::{Leaf, Place};
use penfold_process::{Pid, ProcFs};
use penfold_sys::child::Exit;
use rustix::event::{PollFd, Timespec};

use crate::drive::{Host, Ladder, drive};
use crate::lifecycle::{Event, Phase};
use crate::members::{Scope, Teardown};
use crate::report::{Findings, Level};
use crate::resource::Resource;
use crate::selector::{Search, Selector};

/// A child and everything that it starts.
///
/// It sits in a cgroup leaf where the host offers one; else it is known as the descendants of the child. The second
/// cannot follow a daemon that lost its parent before the end was asked for: a program that needs that on such a host
/// runs `penfold run` instead, which puts a subreaper in between.
///
/// Dropping it ends nothing, as with [`Child`]; the leaf then stays until somebody removes it.
#[derive(Debug)]
pub struct Spawned {
    child: Child,
    teardown: Teardown,
    level: Level,
}

impl Spawned {
    /// Starts a command. The child stops before its first instruction until it is known to be in its leaf.
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
        // Nobody else reaps it, so even one that has exited still shows who it was.
        let stat = proc.stat(pid)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let search = Search::new(Selector::Process(stat.id()), &mut proc)?;
        let level = if leaf.is_some() { Level::Cgroup } else { Level::Tree };
        Ok(Spawned { child, teardown: Teardown::new(proc, leaf, Scope::Host(Box::new(search))), level })
    }

    /// The child, to wait for or to talk to.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// How membership is known.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Ends the tree: asks, kills, looks, and tells what it found. The child is reaped.
    ///
    /// # Errors
    /// When the child cannot be waited for; the findings are lost then, but not the deeds.
    pub fn end(&mut self, ladder: &Ladder) -> io::Result<Findings> {
        let findings = end(&mut self.teardown, ladder, &mut []);
        self.child.try_wait()?;
        Ok(findings)
    }
}

/// A number that no other tree of this process has: the time since boot, in nanoseconds.
fn fresh() -> u128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u128::from(now.tv_sec.unsigned_abs()) * 1_000_000_000 + u128::from(now.tv_nsec.unsigned_abs())
}

/// Ends the members here and now, then releases the resources: asks first if the ladder has a grace, and gives up when
/// the patience is over.
pub fn end(teardown: &mut Teardown, ladder: &Ladder, resources: &mut [Box<dyn Resource>]) -> Findings {
    drive(teardown, Phase::Running, &mut Blocking { ladder: *ladder, asked: false }, resources)
}

/// A host that wants the end at once and gives up when it is stuck.
struct Blocking {
    ladder: Ladder,
    asked: bool,
}

impl Host for Blocking {
    fn wait(&mut self, mut watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> Option<Event> {
        if !self.asked {
            self.asked = true;
            let now = self.ladder.grace.is_zero();
            return Some(if now { Event::KillRequested } else { Event::StopRequested });
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let _ = rustix::event::poll(&mut watch, timeout.as_ref());
        None
    }

    fn ladder(&self) -> Ladder {
        self.ladder
    }

    fn stuck(&mut self, _: &Findings, _: Option<Exit>) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}
