//! What a detached sandbox has besides what every sandbox has.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Instant;

use penfold_process::ProcessId;
use penfold_state::events::{EventKind, Journal};
use penfold_state::record::{Record, SCHEMA};
use penfold_state::state::{Exec, Exited, State, Status};
use penfold_state::time::now_ms;
use penfold_state::{Detach, ExitStatus, Files, Intent, Report};
use penfold_teardown::{Cause, Level, Resource};
use rustix::event::PollFd;

use crate::control_server::{ClientMessage, ControlServer};
use crate::execs::Execs;
use crate::exit_record::ExitRecord;
use crate::lease::Lease;
use crate::output::Output;
use crate::policy::Activity;

/// Its control socket, its output, its lease, its files. Supervisor and standby hold them both.
pub(crate) struct DetachedParts {
    pub(crate) control: ControlServer,
    pub(crate) output: Output,
    pub(crate) lease: Lease,
    pub(crate) exit: ExitRecord,
    /// The commands that were put into the sandbox.
    pub(crate) execs: Execs,
    files: Files,
    journal: Journal,
    /// When there was output or input last.
    active: Instant,
    supervisors: Vec<ProcessId>,
    leader: Option<ProcessId>,
    started_at_ms: u64,
    kept: Rc<Cell<bool>>,
    remove: bool,
    /// The command has run: there is something to tell of.
    ran: bool,
}

/// The record of a sandbox, which stays when a detached one has run.
pub(crate) struct KeptRecord {
    record: Record,
    kept: Rc<Cell<bool>>,
}

impl Resource for KeptRecord {
    fn describe(&self) -> String {
        self.record.describe()
    }

    fn is_record(&self) -> bool {
        true
    }

    fn release(&mut self, forced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if self.kept.get() { Ok(()) } else { self.record.release(forced) }
    }
}

impl DetachedParts {
    /// Makes the socket, the log and the pipes, before anything is started.
    pub(crate) fn open(record: &Record, intent: &Intent, detach: &Detach) -> io::Result<DetachedParts> {
        let files = record.files().clone();
        Ok(DetachedParts {
            control: ControlServer::open(&files)?,
            output: Output::open(&files, detach)?,
            lease: Lease::create(detach.ttl)?,
            exit: ExitRecord::default(),
            execs: Execs::default(),
            journal: Journal::of(&files, intent),
            files,
            active: Instant::now(),
            supervisors: Vec::new(),
            leader: None,
            started_at_ms: now_ms(),
            kept: Rc::new(Cell::new(false)),
            remove: detach.remove,
            ran: false,
        })
    }

    /// The record as a resource: it goes only if the command never ran, or if that was wanted.
    pub(crate) fn keep(&self, record: Record) -> KeptRecord {
        KeptRecord { record, kept: Rc::clone(&self.kept) }
    }

    /// The command runs: from now on the record stays.
    pub(crate) fn has_run(&mut self) {
        self.kept.set(!self.remove);
        self.output.has_run();
        self.ran = true;
    }

    /// Goes on in the place of a supervisor that was killed. `told`: that one tells how the command ended.
    pub(crate) fn inherit(&mut self, told: bool) {
        self.output.inherit(&self.files);
        self.active = Instant::now();
        self.lease.inherit();
        self.exit.believe(told);
        self.has_run();
    }

    /// The commands that were put into the sandbox, as the other process has written it down.
    pub(crate) fn written_execs(&self) -> Vec<Exec> {
        self.files.state().ok().flatten().map(|state| state.execs).unwrap_or_default()
    }

    /// Names the processes that look after the sandbox, and the first one in it.
    pub(crate) fn looked_after_by(&mut self, supervisors: Vec<ProcessId>, leader: Option<ProcessId>) {
        self.supervisors = supervisors;
        self.leader = leader;
    }

    /// Writes down how things stand. A host without room for it keeps the old word; nothing depends on it.
    pub(crate) fn say(&self, status: Status, level: Level, missing: &[String]) {
        let state = State {
            schema: SCHEMA,
            status,
            supervisors: self.supervisors.clone(),
            leader: self.leader,
            level,
            started_at_ms: self.started_at_ms,
            expires_at_ms: self.lease.expires_at_ms(),
            execs: self.execs.states(),
            missing: missing.to_vec(),
        };
        let _ = self.files.write_state(&state);
    }

    /// What the idle time is measured by.
    pub(crate) fn activity(&self) -> Activity {
        Activity { last: self.active, execs: self.execs.running() }
    }

    /// What to poll; [`DetachedParts::serve`] takes the answers in the same order.
    pub(crate) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        let outputs = self.output.pipe_sources().chain(self.execs.sources());
        self.control.sources().chain(outputs).chain(self.output.terminal_sources())
    }

    /// Lets clients in, hears them, moves output into the log.
    pub(crate) fn serve(&mut self, ready: &[bool]) -> Vec<ClientMessage> {
        let began = Instant::now();
        let (clients, others) = ready.split_at_checked(self.control.source_count()).unwrap_or((ready, &[]));
        let (pipes, others) = others.split_at_checked(self.output.pipe_count()).unwrap_or((others, &[]));
        if self.output.drain(pipes) {
            self.active = Instant::now();
        }
        if others.contains(&true) {
            self.execs.reap();
            self.output.serve_terminal();
            self.active = Instant::now();
        }
        self.control.serve(clients, began)
    }

    /// Writes down how the command ended, as soon as that is known, and tells of it.
    pub(crate) fn write_exited(&self, exit: Option<ExitStatus>, cause: Cause) {
        if let Some(exited) = self.exit.write(&self.files, exit, cause) {
            self.happened([EventKind::from(&exited)]);
        }
    }

    /// Tells those who follow the events; of a command that never ran there is nothing to tell.
    pub(crate) fn happened(&self, what: impl IntoIterator<Item = EventKind>) {
        if self.ran {
            self.journal.tell(what);
        }
    }

    /// Writes down the end: all output, how the command ended, and last the report, by which the sandbox has ended.
    pub(crate) fn conclude(&mut self, report: &Report) {
        self.output.finish();
        if !report.findings.verified {
            return;
        }
        self.write_exited(report.exit, report.cause);
        // Before the report: who waits for the end finds all that led to it.
        self.happened(report.findings.steps.iter().map(EventKind::from));
        let exited = Exited { schema: SCHEMA, exit: report.exit, cause: report.cause, at_ms: now_ms() };
        let exited = self.exit.truth(&self.files).unwrap_or(exited);
        let mut report = report.clone();
        if self.exit.is_tampered() {
            report.missing.push("a record that is whole: somebody else had written `exit.json`".to_owned());
        }
        let _ = self.files.write_end(&exited, &report);
        ControlServer::unlink(&self.files);
    }
}
