//! The processes of one tree, for the faces of this crate.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use penfold_cgroup::{Leaf, LeafPlace};
use penfold_process::{ProcFs, ProcessId, Stat};
use penfold_teardown::{Leader, MemberScope, Search, Selector, StopPolicy, Survivor, Teardown};
use rustix::event::{EventfdFlags, eventfd};
#[cfg(feature = "tokio")]
use rustix::process::{PidfdFlags, pidfd_open};

use crate::adoption::{Adoption, identify_child};
use crate::ending::end_members;
use crate::options::Options;
use crate::report::Report;

/// What proves that nothing of a tree is left.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Proof {
    /// A cgroup that holds the tree alone.
    Cgroup,
    /// The orphans of the tree become children of this process, which is a subreaper.
    Subreaper,
    /// Nothing, for this reason. Members are ended as far as they are seen, and the tree is never reported as gone.
    None(String),
}

/// The variables by which daemons are found begin with this. Each tree has a variable of its own.
const VARIABLE: &str = "PENFOLD_TREE_";
/// The most time that a process may take to execute a program.
const SETTLE: Duration = Duration::from_secs(1);
const RESTLESS: &str = "processes of the tree keep executing programs";
/// The patience of a drop, whose caller learns nothing of survivors.
const DROP_PATIENCE: Duration = Duration::from_secs(1);

/// The processes of one tree.
#[derive(Debug)]
pub(crate) struct Processes {
    child: Child,
    id: ProcessId,
    teardown: Teardown,
    proof: Proof,
    adoption: Option<Adoption>,
    patience: Duration,
    pub(crate) kill_on_drop: bool,
    /// Readable once the grace of an end that goes on is over.
    hurry: OwnedFd,
    /// Whether the first end has begun.
    asked: bool,
    gone: bool,
}

/// A command that was just started.
struct Start {
    child: Child,
    stat: Stat,
    leaf: Option<Leaf>,
    adoption: Option<Adoption>,
    proof: Proof,
}

/// A command that could not be started, or not be seen and was killed.
struct NotStarted {
    error: io::Error,
    /// Where something that it has started may be.
    leaf: Option<Leaf>,
    adoption: Option<Adoption>,
}

impl From<io::Error> for Box<NotStarted> {
    fn from(error: io::Error) -> Box<NotStarted> {
        Box::new(NotStarted { error, leaf: None, adoption: None })
    }
}

impl Processes {
    pub(crate) fn spawn(command: &mut Command, options: &Options) -> io::Result<Processes> {
        let mut proc = ProcFs::open()?;
        let hurry = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let name = format!("{VARIABLE}{}_{}", std::process::id(), fresh());
        let variable = Selector::Environment { key: name.clone().into_bytes(), value: b"1".to_vec() };
        // Before the start: nothing that can fail comes after it.
        let mut search = Search::new(variable, &mut proc)?.below_only();
        command.env(&name, "1");
        let started = start(command, options, &mut proc, &name);
        // The next tree of this command has a variable of its own.
        command.env_remove(&name);
        let Start { child, stat, leaf, adoption, proof } = match started {
            Ok(start) => start,
            Err(failed) => {
                let NotStarted { error, leaf, adoption } = *failed;
                let policy =
                    StopPolicy { grace: Duration::ZERO, patience: DROP_PATIENCE, ..StopPolicy::default() };
                end_members(
                    &mut Teardown::new(proc, leaf, MemberScope::Host(Box::new(search))),
                    policy,
                    &hurry,
                );
                drop(adoption);
                return Err(error);
            }
        };
        search.add_member(stat.id());
        let mut teardown = Teardown::new(proc, leaf, MemberScope::Host(Box::new(search)));
        // Else the members that the kernel kills with their cgroup would have no name.
        teardown.want_details();
        teardown.lead_by(Leader { pid: stat.pid, session: stat.session });
        Ok(Processes {
            child,
            id: stat.id(),
            teardown,
            proof,
            adoption,
            patience: options.patience,
            kill_on_drop: options.kill_on_drop,
            hurry,
            asked: false,
            gone: false,
        })
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn proof(&self) -> &Proof {
        &self.proof
    }

    /// Returns a pidfd of the command, which may have ended already.
    ///
    /// # Errors
    /// When other code has reaped the command.
    #[cfg(feature = "tokio")]
    pub(crate) fn pidfd(&mut self) -> io::Result<OwnedFd> {
        let pidfd = pidfd_open(self.id.pid, PidfdFlags::empty())?;
        // The pid is that of the command as long as it is not reaped, and a zombie still has its start time.
        let stat = self.teardown.proc().stat(self.id.pid)?;
        if stat.is_none_or(|stat| stat.id() != self.id) {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        Ok(pidfd)
    }

    /// Returns the descriptor by which another thread cuts the grace short: an eventfd.
    #[cfg(feature = "tokio")]
    pub(crate) fn hurry(&self) -> io::Result<OwnedFd> {
        self.hurry.try_clone()
    }

    /// Notes whose children this process has, while that is certain. A failure makes a later answer less certain, never wrong.
    pub(crate) fn note_foreign(&mut self) {
        if let Some(adoption) = &mut self.adoption {
            let _ = adoption.note_foreign(self.teardown.proc());
        }
    }

    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        self.note_foreign();
        let exit = self.child.wait()?;
        self.look();
        Ok(exit)
    }

    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.note_foreign();
        let exit = self.child.try_wait()?;
        if exit.is_some() {
            self.look();
        }
        Ok(exit)
    }

    /// Looks for members, which stay members from then on: those that end by themselves are reaped later.
    fn look(&mut self) {
        if self.adoption.is_some() {
            self.teardown.members();
        }
    }

    pub(crate) fn end(&mut self, grace: Duration) -> Report {
        self.end_within(grace, self.patience)
    }

    fn end_within(&mut self, grace: Duration, patience: Duration) -> Report {
        self.note_foreign();
        if self.adoption.is_none() {
            // What has left the cgroup may be anywhere. A failure shows in the looks that follow.
            let _ = self.teardown.look_over_host();
        }
        if !std::mem::replace(&mut self.asked, true) && !self.leader_lives() {
            self.teardown.outlived();
        }
        let stop_policy = StopPolicy { grace, patience, ..StopPolicy::default() };
        let mut findings = end_members(&mut self.teardown, stop_policy, &self.hurry);
        let until = Instant::now() + SETTLE.min(patience);
        let doubts = loop {
            let ended = self.adoption.as_ref().map(Adoption::ended).unwrap_or_default();
            let _ = self.teardown.reap_adopted(ended);
            match self.doubts(until) {
                Some(doubts) => break doubts,
                // A member that executed a program during the end: for that moment nothing showed what it is.
                None if findings.verified && Instant::now() < until => {
                    findings = end_members(&mut self.teardown, stop_policy, &self.hurry);
                }
                // It is named already.
                None if !findings.verified => break Vec::new(),
                None => break vec![Survivor::Unknown { reason: RESTLESS.to_owned() }],
            }
        };
        let exit = self.child.try_wait().ok().flatten();
        findings.verified &= doubts.is_empty();
        let known: Vec<i32> = findings.survivors.iter().filter_map(pid_of).collect();
        let fresh = doubts.into_iter().filter(|doubt| pid_of(doubt).is_none_or(|pid| !known.contains(&pid)));
        findings.survivors.extend(fresh);
        self.gone = findings.verified;
        Report::new(exit, findings)
    }

    /// Returns the reasons why nothing may be left and still is not proved to be; `None` if there is a member.
    fn doubts(&mut self, until: Instant) -> Option<Vec<Survivor>> {
        match (&self.proof, &mut self.adoption) {
            (Proof::None(reason), _) => Some(vec![Survivor::Unknown { reason: reason.clone() }]),
            (_, None) => Some(Vec::new()),
            (_, Some(adoption)) => match adoption.settled_doubts(self.teardown.proc(), until) {
                Ok(found) => found.map(|found| found.iter().map(doubtful).collect()),
                Err(error) => Some(vec![Survivor::Unknown {
                    reason: format!("cannot look at the children of this process: {error}"),
                }]),
            },
        }
    }

    fn leader_lives(&mut self) -> bool {
        let stat = self.teardown.proc().stat(self.id.pid);
        matches!(stat, Ok(Some(stat)) if stat.id() == self.id && !stat.is_dead())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        if self.kill_on_drop && !self.gone {
            let _ = self.end_within(Duration::ZERO, DROP_PATIENCE.min(self.patience));
        }
    }
}

fn pid_of(survivor: &Survivor) -> Option<i32> {
    if let Survivor::Process { pid, .. } = survivor { Some(*pid) } else { None }
}

fn doubtful(stat: &Stat) -> Survivor {
    Survivor::Process {
        pid: stat.pid.as_raw_nonzero().get(),
        start_time: stat.start.0,
        name: stat.comm.clone(),
        state: stat.state.letter(),
        wait_channel: None,
        reason: "is a child of this process, and nothing shows whether the tree or other code started it: left alone"
            .to_owned(),
    }
}

/// Starts the command: in a leaf, else as a child of a subreaper.
fn start(
    command: &mut Command,
    options: &Options,
    proc: &mut ProcFs,
    name: &str,
) -> Result<Start, Box<NotStarted>> {
    let hidden =
        proc.hides_processes().then_some("`/proc` does not show the processes of other users (hidepid)");
    let proof = |proof| hidden.map_or(proof, |reason| Proof::None(reason.to_owned()));
    if options.cgroup
        && let Some((child, leaf)) = start_in_leaf(command, name)
    {
        let (child, stat) = match identify_child(child, proc) {
            Ok(identified) => identified,
            Err(error) => return Err(Box::new(NotStarted { error, leaf: Some(leaf), adoption: None })),
        };
        return Ok(Start { child, stat, leaf: Some(leaf), adoption: None, proof: proof(Proof::Cgroup) });
    }
    match Adoption::begin(proc, name) {
        Ok(mut adoption) => {
            let spawned = adoption.spawn(proc, command);
            let adoption = Some(adoption);
            let (child, stat) = match spawned {
                Ok(spawned) => spawned,
                Err(error) => return Err(Box::new(NotStarted { error, leaf: None, adoption })),
            };
            Ok(Start { child, stat, leaf: None, adoption, proof: proof(Proof::Subreaper) })
        }
        Err(error) => {
            let child = penfold_sys::launch::spawn_subreaper(command)?;
            let (child, stat) = identify_child(child, proc)?;
            let proof = Proof::None(format!("this process cannot adopt the orphans of the command: {error}"));
            Ok(Start { child, stat, leaf: None, adoption: None, proof })
        }
    }
}

/// Starts the command in a leaf of its own; `None` where that cannot be, with nothing left. Then the command has not run.
fn start_in_leaf(command: &mut Command, name: &str) -> Option<(Child, Leaf)> {
    let place = LeafPlace::find_here().ok()?;
    let leaf = Leaf::create(&place, &name.to_lowercase().replace('_', "-")).ok()?;
    let launched = leaf.processes_file().and_then(|file| penfold_sys::launch::spawn_joined(command, file));
    if let Ok(child) = launched {
        return Some((child, leaf));
    }
    // The second start tells the error of the command, if it has one.
    let _ = leaf.remove();
    None
}

/// Returns a number that no other tree of this process has: the time since boot, in nanoseconds.
fn fresh() -> u128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u128::from(now.tv_sec.unsigned_abs()) * 1_000_000_000 + u128::from(now.tv_nsec.unsigned_abs())
}

#[cfg(all(test, feature = "tokio"))]
mod tests {
    use super::*;

    /// spec: 33.6
    #[test]
    fn a_command_that_ends_at_once_has_a_pidfd() {
        let mut processes = Processes::spawn(&mut Command::new("true"), &Options::default()).unwrap();
        // As if the command had ended before anybody asked.
        let wait = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(processes.id.pid), wait).unwrap().unwrap();
        assert!(processes.pidfd().is_ok());
        assert!(processes.wait().unwrap().success());
        assert!(processes.end(Duration::ZERO).gone());
    }
}
