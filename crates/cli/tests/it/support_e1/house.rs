//! The processes of penfold around one leader, by handle.

use std::time::Duration;

use penfold_testkit::Tree;
use penfold_testkit::proc::{self, Handle};
use rustix::process::Signal;

use super::{Level, Shape, until};

/// How long a process may take to follow a stop.
const STOPPED: Duration = Duration::from_millis(100);
/// In a storm of forks it takes the kernel a while until one that was sent SIGKILL gets its turn to die.
const DEAD: Duration = Duration::from_secs(10);

/// One of our processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ours {
    Front,
    Outer,
    Inner,
}

/// All of them.
#[derive(Debug)]
pub struct House {
    /// From the front to the inner one.
    line: Vec<Handle>,
}

impl House {
    /// # Errors
    /// When the leader or one of them has ended, or there are more or fewer of them than the shape has.
    pub fn around(tree: &Tree, shape: Shape, level: Level) -> Result<House, String> {
        let leader = tree.members().first().copied().ok_or("no leader")?;
        let front = tree.tool().ok_or("no tool")?;
        let above = proc::ancestors(&proc::all(), leader.pid);
        let end = above.iter().position(|&id| id == front).ok_or("the tool is not above the leader")?;
        // Our init stands between the leader and the supervisor.
        let start = if level == Level::Pidns { 2 } else { 1 };
        let ours = above.get(start..=end).unwrap_or_default().iter().rev();
        let line: Vec<Handle> = ours.filter_map(|&id| Handle::open(id).ok().flatten()).collect();
        let wanted = if shape == Shape::Trio { 3 } else { 2 };
        if line.len() == wanted {
            Ok(House { line })
        } else {
            Err(format!("{} processes of penfold", line.len()))
        }
    }

    fn handle(&self, which: Ours) -> Result<&Handle, String> {
        let process = match which {
            Ours::Front => self.line.first(),
            Ours::Outer => self.line.get(1).filter(|_| self.line.len() == 3),
            Ours::Inner => self.line.last(),
        };
        process.ok_or_else(|| format!("there is no {which:?}"))
    }

    pub fn signal(&self, which: Ours, signal: Signal) -> Result<(), String> {
        self.handle(which)?.signal(signal).map_err(|error| error.to_string())
    }

    /// SIGKILL to these in one instant: none of them can act on the death of another.
    pub fn kill(&self, which: &[Ours]) -> Result<(), String> {
        let processes: Vec<&Handle> =
            which.iter().map(|&which| self.handle(which)).collect::<Result<_, _>>()?;
        at_once(&processes)
    }

    /// SIGKILL to all of them in one instant.
    pub fn kill_all(&self) -> Result<(), String> {
        at_once(&self.line.iter().collect::<Vec<_>>())
    }
}

/// Stops all, kills all, and waits until they have ended: until then they hold the sandbox's lock.
fn at_once(processes: &[&Handle]) -> Result<(), String> {
    let tell = |error: std::io::Error| error.to_string();
    if processes.len() > 1 {
        for process in processes {
            process.signal(Signal::STOP).map_err(tell)?;
        }
        // A process that waits for its turn on a busy machine has not stopped yet; one whose parent lives may be
        // woken by it.
        until(STOPPED, || {
            processes.iter().all(|process| proc::stat(process.id.pid).is_some_and(|stat| stat.state == 'T'))
        });
    }
    // The innermost first: the death of a parent wakes its child.
    for process in processes.iter().rev() {
        process.signal(Signal::KILL).map_err(tell)?;
    }
    let ended = processes.iter().all(|process| process.wait(Some(DEAD)));
    if ended { Ok(()) } else { Err("a killed process of penfold has not ended".to_owned()) }
}
