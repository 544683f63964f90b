//! `create`, `run`, `exec`, `kill` and `delete` of a container.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use penfold_process::{Pid, ProcFs, Process, SchedulerState, Signal};
use penfold_state::Id;
use penfold_sys::crash_point;
use rustix::event::{PollFd, PollFlags};
use rustix::process::PidfdFlags;

use crate::cgroups::{self, CgroupNames};
use crate::config::ContainerConfig;
use crate::containers;
use crate::delegate::{self, Delegate, DelegateEnvironment, DelegateReport};
use crate::log::LogLevel;
use crate::members::{ContainerMember, ContainerMembers, wait_for_descriptors};
use crate::mounts::MountNamespace;
use crate::news;
use crate::note::{Annotations, ContainerNote, ContainerNotes, Engine};
use crate::refused::VerbError;
use crate::words::CommandWords;

/// `kill` and `delete` answer within this time.
pub const LIMIT: Duration = Duration::from_secs(5);
/// The same where the engine is Docker, which waits for 2 s, or Podman.
pub const SHORT_LIMIT: Duration = Duration::from_millis(1500);

/// The parts of the time for an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeLimits {
    /// In this time members must die.
    killing: Duration,
    /// Until then the delegate must answer.
    delegated: Duration,
    /// The end of the last look.
    looked: Duration,
    /// The time that processes have that were killed already, before `delete` is refused.
    dying: Duration,
}

impl TimeLimits {
    /// Within [`LIMIT`].
    const LONG: TimeLimits = TimeLimits {
        killing: Duration::from_millis(2500),
        delegated: Duration::from_millis(4200),
        looked: Duration::from_millis(4600),
        dying: Duration::from_millis(300),
    };
    /// Within [`SHORT_LIMIT`].
    const SHORT: TimeLimits = TimeLimits {
        killing: Duration::from_millis(600),
        delegated: Duration::from_millis(1100),
        looked: Duration::from_millis(1250),
        dying: Duration::from_millis(200),
    };
}

/// What the caller does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextStep {
    /// Execute the delegate with these words.
    PassOn(Vec<OsString>),
    /// Exit with this code.
    Exit(u8),
}

/// An OCI runtime in front of a delegate.
#[derive(Debug, Clone)]
pub struct Runtime {
    delegate: Delegate,
    pub(crate) words: CommandWords,
    /// The words for the delegate.
    pub(crate) all: Vec<OsString>,
    state_root: PathBuf,
    engine_root: PathBuf,
    /// What containers without annotations ask for.
    usual: Annotations,
    /// Writes a sentence to standard error.
    tell: fn(&str),
    begun: Instant,
}

/// A container as it is found.
pub(crate) struct FoundContainer {
    pub(crate) note: Option<ContainerNote>,
    pub(crate) report: DelegateReport,
    pub(crate) members: ContainerMembers,
}

impl FoundContainer {
    /// The times that the engine gives.
    fn limits(&self) -> TimeLimits {
        match self.note.as_ref().map_or(Engine::Other, |note| note.engine) {
            Engine::Docker | Engine::Podman => TimeLimits::SHORT,
            Engine::Other => TimeLimits::LONG,
        }
    }

    /// Tells whether the first process has ended.
    fn is_over(&self) -> bool {
        let stat = self.report.init.and_then(|init| Some((init, ProcFs::open().ok()?.stat(init.pid).ok()??)));
        stat.is_none_or(|(init, stat)| stat.id() != init || stat.is_dead())
    }

    /// Tells whether the main thread of the first process has exited, and others live.
    fn has_only_threads(&self) -> io::Result<bool> {
        let Some(init) = self.report.init else { return Ok(false) };
        let stat = ProcFs::open()?.stat(init.pid)?.filter(|stat| stat.id() == init);
        Ok(stat.is_some_and(|stat| stat.state == SchedulerState::Zombie && !stat.is_dead()))
    }
}

impl Runtime {
    /// Makes a runtime for one call.
    pub fn new(
        delegate: Delegate,
        words: CommandWords,
        all: Vec<OsString>,
        state_root: PathBuf,
        surroundings: &DelegateEnvironment,
    ) -> Runtime {
        let root = words.root.clone().unwrap_or_else(|| delegate.default_root(surroundings));
        let engine_root = std::path::absolute(&root).unwrap_or(root);
        Runtime {
            delegate,
            words,
            all,
            state_root,
            engine_root,
            usual: Annotations::default(),
            tell: |_| (),
            begun: Instant::now(),
        }
    }

    /// Sets what containers without annotations ask for.
    #[must_use]
    pub fn with_usual(self, usual: Annotations) -> Runtime {
        Runtime { usual, ..self }
    }

    /// Sets what becomes of a sentence that changes no answer.
    #[must_use]
    pub fn with_reporter(self, tell: fn(&str)) -> Runtime {
        Runtime { tell, ..self }
    }

    /// Runs the verb.
    ///
    /// # Errors
    /// When something is left, cannot be looked at, or the delegate cannot be used.
    pub fn call(&self) -> Result<NextStep, VerbError> {
        if self.notes().have_refused(Some((&self.engine_root, &self.words.id))) {
            self.follow_refused();
        }
        match self.words.verb.as_str() {
            "create" | "run" => self.create(),
            "start" => {
                // What starts inside has not changed anything yet.
                let _ = self.find();
                Ok(self.pass_on())
            }
            "exec" => self.exec(),
            "kill" => self.kill(),
            "delete" => self.delete(),
            _ => Ok(self.pass_on()),
        }
    }

    pub(crate) fn pass_on(&self) -> NextStep {
        NextStep::PassOn(self.all.clone())
    }

    /// Notes the container; then the delegate creates it.
    fn create(&self) -> Result<NextStep, VerbError> {
        // The delegate says better than penfold what is wrong with a bundle.
        let Ok(config) = ContainerConfig::of_bundle(&self.words.bundle) else { return Ok(self.pass_on()) };
        if self.is_known() {
            // The delegate refuses; the note of the container that exists stays.
            return Ok(self.pass_on());
        }
        let source = |source| VerbError::Note { id: self.words.id.clone(), source };
        let names = CgroupNames { id: &self.words.id, cgroups_path: config.cgroups_path() };
        let cgroups = cgroups::usual_cgroups(&names).map_err(source)?.into_iter().collect();
        let note = ContainerNote {
            schema: 1,
            engine_root: self.engine_root.clone(),
            id: self.words.id.clone(),
            bundle: std::path::absolute(&self.words.bundle).unwrap_or_default(),
            delegate: self.delegate.program().to_owned(),
            systemd: self.words.systemd,
            cgroups_path: config.cgroups_path().to_owned(),
            private_pids: config.has_private_pids(),
            private_mounts: config.has_private_mounts(),
            mounts: None,
            engine: config
                .engine(&self.engine_root, &std::path::absolute(&self.words.bundle).unwrap_or_default()),
            asked: config.asked(self.usual),
            boot_id: penfold_process::boot_id().unwrap_or_default(),
            mount_namespace: containers::mount_namespace(),
            token: Id::new().map_err(source)?.short(),
            cgroups,
        };
        crash_point!("oci-create");
        self.notes().write_first(&note).map_err(source)?;
        crash_point!("oci-noted");
        if self.words.verb == "run" && !self.words.detach {
            // The delegate deletes the container itself.
            self.follow_run(note.token).map_err(source)?;
        }
        Ok(self.pass_on())
    }

    /// Kills all processes, where the end of the first one would leave others.
    fn kill(&self) -> Result<NextStep, VerbError> {
        if !self.words.is_sigkill() || !self.is_known() {
            return Ok(self.pass_on());
        }
        let mut container = self.find()?;
        let Some(note) = &container.note else { return Ok(self.pass_on()) };
        // The delegate kills the first process, and with it a pid namespace. But it takes one whose main thread has exited for dead.
        if note.private_pids && !container.has_only_threads().map_err(|source| self.unseen(source))? {
            return self.delegated(container.limits()).map(NextStep::Exit);
        }
        crash_point!("oci-kill");
        let deadline = self.begun + container.limits().looked;
        let left = container.members.end(deadline).map_err(|source| self.unseen(source))?;
        crash_point!("oci-killed");
        if !left.is_empty() {
            if !note.asked.only_reports {
                return Err(self.refuse(&left, &[]));
            }
            self.publish(&words_of(&left, &[]), "reported");
        }
        Ok(NextStep::Exit(0))
    }

    /// Deletes the container. If that fails, the mark has it ended later: the engine may have forgotten the container by then.
    fn delete(&self) -> Result<NextStep, VerbError> {
        let container = self.find()?;
        let note = container.note.clone().filter(|_| self.words.force || container.is_over());
        let answer = self.delete_found(container);
        if let (Err(_), Some(note)) = (&answer, note)
            && let Err(error) = self.notes().mark_refused(&note)
        {
            self.report_sentence(&format!(
                "cannot mark container `{}` as one to be deleted: {error}",
                note.id
            ));
        }
        answer
    }

    fn delete_found(&self, mut container: FoundContainer) -> Result<NextStep, VerbError> {
        let limits = container.limits();
        let known = self.is_known();
        if !known && container.note.is_none() {
            return Ok(if self.words.force { NextStep::Exit(0) } else { self.pass_on() });
        }
        self.remember(&mut container);
        crash_point!("oci-delete");
        let only_reports = container.note.as_ref().is_some_and(|note| note.asked.only_reports);
        let left = if self.words.force {
            container.members.end(self.begun + limits.killing)
        } else {
            container.members.await_end(self.begun + limits.dying)
        };
        let mut left = left.map_err(|source| self.unseen(source))?;
        if !self.words.force {
            // The delegate refuses or kills a first process that lives: it knows whether the container runs or is only created.
            left.retain(|member| container.report.init.is_none_or(|init| init.pid != member.pid()));
        }
        if !left.is_empty() {
            if !only_reports {
                return Err(self.refuse(&left, &[]));
            }
            self.publish(&words_of(&left, &[]), "reported");
        }
        container.members.remove_below().map_err(|source| self.unseen(source))?;
        crash_point!("oci-looked");
        let code = if known { self.delegated(limits)? } else { 0 };
        crash_point!("oci-delegated");
        if code != 0 && self.is_known() {
            return Ok(NextStep::Exit(code));
        }
        self.finish(container, only_reports)
    }

    /// Looks for the last time, and removes the note.
    pub(crate) fn finish(
        &self,
        mut container: FoundContainer,
        only_reports: bool,
    ) -> Result<NextStep, VerbError> {
        let limits = container.limits();
        let soon = (self.begun + limits.looked).min(Instant::now() + limits.dying);
        let left = container.members.await_end(soon).map_err(|source| self.unseen(source))?;
        if left.is_empty() {
            let cgroups = container.members.remove(soon).map_err(|source| self.unseen(source))?;
            if !cgroups.is_empty() && !only_reports {
                return Err(self.refuse(&[], &cgroups));
            }
        } else if !only_reports {
            return Err(self.refuse(&left, &[]));
        }
        crash_point!("oci-verified");
        let notes = self.notes();
        let damaged = || notes.remove_damaged(&self.engine_root, &self.words.id);
        let removed = container.note.as_ref().map_or_else(damaged, |note| notes.remove(note));
        if let Err(error) = removed {
            self.report_sentence(&format!(
                "container `{}` is gone, and its note cannot be removed: {error}",
                self.words.id
            ));
        }
        Ok(NextStep::Exit(0))
    }

    pub(crate) fn find(&self) -> Result<FoundContainer, VerbError> {
        let id = &self.words.id;
        let note = match self.notes().read(&self.engine_root, id) {
            // What the delegate knows is enough for an end.
            Err(error) if self.words.verb == "delete" && self.is_known() => {
                self.report_sentence(&format!("cannot read the note of container `{id}`: {error}"));
                None
            }
            note => note.map_err(|source| self.unseen(source))?,
        };
        let report = delegate::read_delegate_report(&self.engine_root, id);
        let cgroups_path = note.as_ref().map_or("", |note| &note.cgroups_path);
        let known = note.as_ref().map_or(&[][..], |note| &note.cgroups);
        let found = cgroups::find_cgroups(&CgroupNames { id, cgroups_path }, &report, known)
            .map_err(|source| self.unseen(source))?;
        let members = ContainerMembers::of(found).map_err(|source| self.unseen(source))?;
        let note = note.map(|note| self.with_mounts(note, &report));
        let mounts = note.as_ref().and_then(|note| note.mounts);
        Ok(FoundContainer { note, report, members: members.with_mounts(mounts) })
    }

    /// Notes the mount namespace while the first process lives, where the end of that one leaves others.
    fn with_mounts(&self, note: ContainerNote, report: &DelegateReport) -> ContainerNote {
        if note.private_pids || !note.private_mounts || note.mounts.is_some() {
            return note;
        }
        let init = report.init.and_then(|init| MountNamespace::of(&mut ProcFs::open().ok()?, init));
        let note = ContainerNote { mounts: init, ..note };
        if init.is_some()
            && let Err(error) = self.notes().rewrite(&note)
        {
            self.report_sentence(&format!("cannot write the note of container `{}`: {error}", note.id));
        }
        note
    }

    /// Notes the cgroups: a later `delete` finds them after the delegate has removed its own state. The end goes on without: it needs no space.
    fn remember(&self, container: &mut FoundContainer) {
        let Some(note) = &mut container.note else { return };
        let cgroups: Vec<PathBuf> = container.members.roots().iter().cloned().collect();
        if note.cgroups != cgroups {
            note.cgroups = cgroups;
            if let Err(error) = self.notes().rewrite(note) {
                self.report_sentence(&format!("cannot write the note of container `{}`: {error}", note.id));
            }
        }
    }

    /// Writes a sentence about something that changes no answer to the file of `--log`, and to standard error.
    fn report_sentence(&self, sentence: &str) {
        (self.tell)(sentence);
        if let Some(log) = &self.words.log
            && let Err(error) = crate::log::append_log(log, LogLevel::Warning, sentence)
        {
            (self.tell)(&format!("cannot write the file of `--log`: {error}"));
        }
    }

    pub(crate) fn delegate(&self) -> &Delegate {
        &self.delegate
    }

    /// Tells whether the delegate knows the container.
    pub(crate) fn is_known(&self) -> bool {
        delegate::delegate_knows(&self.engine_root, &self.words.id)
    }

    /// Gives this runtime the full time again, as at its start.
    pub(crate) fn begin_again(self) -> Runtime {
        Runtime { begun: Instant::now(), ..self }
    }

    /// Runs the delegate as a child; returns its exit code.
    fn delegated(&self, limits: TimeLimits) -> Result<u8, VerbError> {
        let program = self.delegate.program();
        let start = |source| VerbError::Start { delegate: program.to_owned(), source };
        // Whatever the delegate starts can then be ended, although it lost its parent.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|errno| start(errno.into()))?;
        let mut child = Command::new(program).args(&self.all).spawn().map_err(start)?;
        let raw = i32::try_from(child.id()).unwrap_or(0);
        let pid = penfold_process::pid_from_raw(raw).ok_or_else(|| start(io::ErrorKind::NotFound.into()))?;
        let pidfd =
            rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| start(errno.into()))?;
        let left = (self.begun + limits.delegated).saturating_duration_since(Instant::now());
        if !wait_for_descriptors(&[PollFd::new(&pidfd, PollFlags::IN)], left) {
            kill_descendants(self.begun + limits.looked);
            return Err(VerbError::Slow { id: self.words.id.clone(), delegate: program.to_owned() });
        }
        let code = child.wait().map_err(start)?.code();
        Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
    }

    /// Counts and publishes what is left.
    fn refuse(&self, members: &[ContainerMember], cgroups: &[PathBuf]) -> VerbError {
        let left = words_of(members, cgroups);
        self.publish(&left, "refused");
        VerbError::Left { id: self.words.id.clone(), left, forced: self.words.force }
    }

    pub(crate) fn publish(&self, left: &str, outcome: &str) {
        news::publish_end(&self.state_root, &self.words.id, left, outcome);
    }

    pub(crate) fn unseen(&self, source: io::Error) -> VerbError {
        VerbError::Look { id: self.words.id.clone(), source }
    }

    /// The file for the pid of a command, where the engine wants none.
    pub(crate) fn pid_file(&self, command: &str) -> PathBuf {
        self.notes().pid_file(&self.engine_root, &self.words.id, command)
    }

    /// Ends containers of any engine whose `delete` was refused, and of which no process is left.
    pub(crate) fn complete_refused(&self) {
        let _ = containers::complete_refused(&self.state_root, Some((&self.engine_root, &self.words.id)));
    }

    fn notes(&self) -> ContainerNotes {
        ContainerNotes::below(&self.state_root)
    }
}

/// Names what is left.
pub(crate) fn words_of(members: &[ContainerMember], cgroups: &[PathBuf]) -> String {
    /// The most that are named.
    const MOST: usize = 8;
    let cgroups = cgroups.iter().map(|dir| format!("cgroup {}", dir.display()));
    let mut words: Vec<String> = members.iter().map(ToString::to_string).chain(cgroups).collect();
    let others = words.len().saturating_sub(MOST);
    words.truncate(MOST);
    let text = words.join(", ");
    if others == 0 { text } else { format!("{text} and {others} more") }
}

/// Kills the delegate and all that it started. This process is their subreaper.
fn kill_descendants(deadline: Instant) {
    let Ok(mut proc) = ProcFs::open() else { return };
    let mut descendants = Vec::new();
    while Instant::now() < deadline {
        if proc.descendants(own_pid(), &mut descendants).is_err() {
            return;
        }
        descendants.retain(|stat| !stat.is_dead());
        if descendants.is_empty() {
            return;
        }
        for stat in &descendants {
            if let Ok(Some(process)) = Process::open_exact(&mut proc, stat.id()) {
                let _ = process.signal(Signal::KILL);
            }
        }
        wait_for_descriptors(&[], Duration::from_millis(1));
    }
}

fn own_pid() -> Pid {
    rustix::process::getpid()
}
