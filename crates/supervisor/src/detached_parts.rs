//! The parts that only a detached sandbox has.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use penfold_process::{Pid, ProcFs, ProcessId};
use penfold_state::events::{EventKind, Journal};
use penfold_state::outside::OutsideNote;
use penfold_state::record::{Record, SCHEMA};
use penfold_state::state::{ExecState, State, Status};
use penfold_state::time::now_ms;
use penfold_state::{Detach, ExecFiles, ExitStatus, Files, Intent, NestedNotes, Report};
use penfold_teardown::{Cause, Level, Resource};
use rustix::event::PollFd;

use crate::control_server::{ClientMessage, ControlServer};
use crate::execs::Execs;
use crate::exit_record::ExitRecord;
use crate::lease::Lease;
use crate::nested::NestedSandboxes;
use crate::output::Output;
use crate::policy::Activity;
use crate::wire::Answer;

/// The shortest time between the last write of `state.json` and one that only leaves out ended execs. The file lists all
/// execs, and many may end at once.
const STATE_INTERVAL: Duration = Duration::from_millis(10);

/// Control socket, output, lease and files of a detached sandbox. Supervisor and standby both hold them.
pub(crate) struct DetachedParts {
    pub(crate) control: ControlServer,
    pub(crate) output: Output,
    pub(crate) lease: Lease,
    pub(crate) exit: ExitRecord,
    /// The sandboxes started inside of this one.
    pub(crate) nested: NestedSandboxes,
    /// The execs of the sandbox.
    pub(crate) execs: Execs,
    /// The note of a sandbox that was taken out of another one.
    outside_note: Option<OutsideNote>,
    /// The clients that wait for the end of an exec, by its number.
    exec_waiters: Vec<(u64, u32)>,
    files: Files,
    journal: Journal,
    /// The time of the last output or input.
    active: Instant,
    supervisors: Vec<ProcessId>,
    leader: Option<ProcessId>,
    started_at_ms: u64,
    state_written: Cell<Instant>,
    /// `state.json` lists an exec that has ended.
    state_is_stale: Cell<bool>,
    kept: Rc<Cell<bool>>,
    remove: bool,
    /// The command has run, so its events are published.
    ran: bool,
}

/// The record of a detached sandbox, which is kept after the command has run.
pub(crate) struct KeptRecord {
    record: Record,
    kept: Rc<Cell<bool>>,
    /// Whether a former life had this record, which is its again if the command never ran.
    has_former: bool,
}

impl Resource for KeptRecord {
    fn describe(&self) -> String {
        self.record.describe()
    }

    fn is_record(&self) -> bool {
        true
    }

    fn release(&mut self, forced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if self.kept.get() {
            return Ok(());
        }
        if self.has_former {
            self.record.return_to_former();
            return Ok(());
        }
        self.record.release(forced)
    }
}

impl DetachedParts {
    /// Creates the socket, the log and the pipes, before any process.
    pub(crate) fn open(
        record: &Record,
        intent: &Intent,
        detach: &Detach,
        nested: NestedNotes,
        outside_note: Option<OutsideNote>,
    ) -> io::Result<DetachedParts> {
        let files = record.files().clone();
        Ok(DetachedParts {
            control: ControlServer::open(&files)?,
            output: Output::open(&files, detach)?,
            lease: Lease::create(detach.ttl)?,
            exit: ExitRecord::default(),
            nested: NestedSandboxes::new(nested),
            execs: Execs::default(),
            outside_note,
            exec_waiters: Vec::new(),
            journal: Journal::of(&files, intent),
            files,
            active: Instant::now(),
            supervisors: Vec::new(),
            leader: None,
            started_at_ms: now_ms(),
            state_written: Cell::new(Instant::now()),
            state_is_stale: Cell::new(false),
            kept: Rc::new(Cell::new(false)),
            remove: detach.remove,
            ran: false,
        })
    }

    /// Returns the files of the record.
    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    /// Publishes why the sandbox is not restarted.
    pub(crate) fn publish_no_restart(&self, reason: String) {
        self.journal.publish([EventKind::NoRestart { reason }]);
    }

    /// Returns the record as a resource that is removed only if the command never ran or `--rm` is set.
    pub(crate) fn keep(&self, record: Record, has_former: bool) -> KeptRecord {
        KeptRecord { record, kept: Rc::clone(&self.kept), has_former }
    }

    /// Marks the command as running: from now on the record is kept.
    pub(crate) fn mark_running(&mut self) {
        self.kept.set(!self.remove);
        self.output.mark_running();
        self.ran = true;
    }

    /// Takes over from a killed supervisor. `exit_written`: that supervisor had written `exit.json`.
    pub(crate) fn inherit(&mut self, exit_written: bool) {
        self.output.inherit(&self.files);
        self.active = Instant::now();
        self.lease.inherit();
        self.exit.trust(exit_written);
        self.mark_running();
    }

    /// Restores the execs in `state.json`, as the killed supervisor wrote them.
    pub(crate) fn restore_execs(&mut self, leaf: Option<&Path>) {
        let written: Vec<ExecState> =
            self.files.state().ok().flatten().map(|state| state.execs).unwrap_or_default();
        self.execs.restore(written, leaf, &self.files);
    }

    /// Returns the number of the next exec, and its leaf below the sandbox's leaf.
    pub(crate) fn number_exec(&mut self, sandbox: Option<&Path>) -> (u32, Option<PathBuf>) {
        self.execs.number(sandbox, &self.files)
    }

    /// Creates the directory of a recorded exec.
    pub(crate) fn create_exec_files(&self, number: u32) -> io::Result<ExecFiles> {
        ExecFiles::create(&self.files, number)
    }

    /// Removes the directory of an exec that never began.
    pub(crate) fn remove_exec_files(&self, exec: &ExecFiles) {
        let _ = exec.remove(&self.files);
    }

    /// Makes a client wait for the verified end of an exec.
    pub(crate) fn await_exec(&mut self, client: u64, number: u32) {
        self.exec_waiters.push((client, number));
    }

    /// Answers the clients whose exec has ended.
    pub(crate) fn answer_exec_waiters(&mut self) {
        if self.exec_waiters.is_empty() {
            return;
        }
        let running = self.execs.numbers();
        let (ended, waiting) = self.exec_waiters.drain(..).partition(|(_, number)| !running.contains(number));
        self.exec_waiters = waiting;
        let ended: Vec<(u64, u32)> = ended;
        for (client, number) in ended {
            self.control.answer(client, &Answer::ExecEnded(number));
        }
        for end in self.execs.unwritten() {
            let number = end.number;
            let answer = Answer::UnwrittenEnds(vec![end]);
            for (client, _) in self.exec_waiters.extract_if(.., |(_, awaited)| *awaited == number) {
                self.control.answer(client, &answer);
            }
        }
        let DetachedParts { exec_waiters, control, .. } = self;
        exec_waiters.retain(|(client, _)| control.has_client(*client));
    }

    /// Writes the ends of recorded execs whose supervisor has exited.
    pub(crate) fn settle_execs(&mut self, level: Level, patience: Duration) {
        self.execs.settle(&self.files, level, patience);
    }

    /// Adds a supervisor to the note of a sandbox outside. Until then the supervisor is known as a child of the one that is noted.
    pub(crate) fn note_supervisor(&self, proc: &mut ProcFs, supervisor: Pid) {
        let Some(note) = &self.outside_note else { return };
        let stat = proc.stat(supervisor).ok().flatten();
        // Without the note, the supervisor counts as a member of the other sandbox once the standby is dead.
        let _ = stat.map(|stat| note.add(stat.id()));
    }

    /// Sets the identities of supervisor, standby and leader.
    pub(crate) fn set_processes(&mut self, supervisors: Vec<ProcessId>, leader: Option<ProcessId>) {
        self.supervisors = supervisors;
        self.leader = leader;
    }

    /// Writes `state.json`. On a full disk the old file stays: no decision depends on it.
    pub(crate) fn write_status(&self, status: Status, level: Level, missing: &[String]) {
        let state = State {
            schema: SCHEMA,
            status,
            supervisors: self.supervisors.clone(),
            leader: self.leader,
            level,
            started_at_ms: self.started_at_ms,
            expires_at_ms: self.lease.expires_at_ms(),
            next_start_at_ms: None,
            execs: self.execs.states(),
            missing: missing.to_vec(),
        };
        let _ = self.files.write_state(&state);
        self.state_written.set(Instant::now());
        self.state_is_stale.set(false);
    }

    /// Writes to `state.json` that this process waits for the next start.
    pub(crate) fn write_waiting(&self, next_start_at_ms: u64, level: Level) {
        let own = ProcFs::open().and_then(|mut proc| proc.stat(rustix::process::getpid()));
        let state = State {
            schema: SCHEMA,
            status: Status::Waiting,
            supervisors: own.ok().flatten().map(|stat| stat.id()).into_iter().collect(),
            leader: None,
            level,
            started_at_ms: self.started_at_ms,
            expires_at_ms: None,
            next_start_at_ms: Some(next_start_at_ms),
            execs: Vec::new(),
            missing: Vec::new(),
        };
        let _ = self.files.write_state(&state);
    }

    /// Notes that `state.json` lists an exec that has ended. Nothing believes the entry: its process is gone.
    pub(crate) fn mark_state_stale(&self) {
        self.state_is_stale.set(true);
    }

    /// Returns the time until a stale `state.json` is written again; `None` if it is not stale.
    pub(crate) fn next_state(&self) -> Option<Duration> {
        let due = STATE_INTERVAL.saturating_sub(self.state_written.get().elapsed());
        self.state_is_stale.get().then_some(due)
    }

    /// Returns the activity that the idle time is measured by.
    pub(crate) fn activity(&self) -> Activity {
        Activity { last: self.active, execs: self.execs.running() }
    }

    /// Returns the descriptors to poll; [`DetachedParts::serve`] takes the results in the same order.
    pub(crate) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        let outputs = self.output.pipe_sources().chain(self.execs.sources());
        self.control.sources().chain(outputs).chain(self.output.terminal_sources())
    }

    /// Accepts clients, receives requests, and moves output into the log.
    pub(crate) fn serve(&mut self, ready: &[bool]) -> Vec<ClientMessage> {
        let began = Instant::now();
        let (clients, others) = ready.split_at_checked(self.control.source_count()).unwrap_or((ready, &[]));
        let (pipes, others) = others.split_at_checked(self.output.pipe_count()).unwrap_or((others, &[]));
        if self.output.drain(pipes) {
            self.active = Instant::now();
        }
        if others.contains(&true) {
            let (execs, _) = others.split_at_checked(self.execs.running()).unwrap_or((others, &[]));
            self.execs.reap(execs);
            self.output.serve_terminal();
            self.active = Instant::now();
        }
        self.control.serve(clients, began)
    }

    /// Writes `exit.json` as soon as the exit is known, and publishes the event.
    pub(crate) fn write_exited(&self, exit: Option<ExitStatus>, cause: Cause) {
        if let Some(exited) = self.exit.write(&self.files, exit, cause) {
            self.publish_events([EventKind::from(&exited)]);
        }
    }

    /// Publishes events, unless the command never ran.
    pub(crate) fn publish_events(&self, what: impl IntoIterator<Item = EventKind>) {
        if self.ran {
            self.journal.publish(what);
        }
    }

    /// Writes the end: the rest of the output, `exit.json`, and last `report.json`, which marks the sandbox as ended.
    pub(crate) fn conclude(&mut self, report: &Report) {
        self.output.finish();
        if !report.findings.verified {
            return;
        }
        if !self.ran {
            // The record is gone, or that of the former life again.
            ControlServer::unlink(&self.files);
            return;
        }
        self.write_exited(report.exit, report.cause);
        self.execs.conclude(&self.files, report.cause, report.level);
        // Before the report: a client that waits for the report then finds all events.
        let steps = report.findings.steps.iter().map(EventKind::from);
        self.publish_events(steps.chain(report.findings.busy.iter().map(EventKind::from)));
        self.exit.conclude(&self.files, report);
        ControlServer::unlink(&self.files);
    }
}
