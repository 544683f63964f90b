//! The status of recorded execs, from their files and the evidence.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use penfold_cgroup::Leaf;
use penfold_state::evidence::LockState;
use penfold_state::execs::{ExecFiles, leaf_name};
use penfold_state::wire::{Answer, Request, UnwrittenEnd};
use penfold_state::{ExitStatus, Files, Report, lacks_descriptors};
use penfold_teardown::{Cause, Survivor};

use crate::client::SupervisorClient;

/// The time in which a supervisor must list its execs. Without an answer, their leaves are looked at.
pub(super) const LIMIT: Duration = Duration::from_secs(1);

/// The status of an exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecStatus {
    /// The exec runs, is being ended, or its state is unknown.
    Running,
    /// The end of the exec is verified.
    Ended,
}

/// A recorded exec.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecView {
    /// The number of the exec in its sandbox.
    pub number: u32,
    /// The beginning of the command.
    pub command: Vec<String>,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The status.
    pub status: ExecStatus,
    /// How the command ended; `None` while it runs, or if unknown. What it has left may go on.
    pub exit: Option<ExitStatus>,
    /// Why the exec ended.
    pub cause: Option<Cause>,
    /// The pid of the command in penfold's pid namespace, as the record says. Never signal it.
    pub leader_pid: Option<i32>,
    /// The pid of the command in the jail of the sandbox, as the record says; `None` outside of a jail. Never signal it.
    pub leader_inside: Option<i32>,
    /// The start time, in milliseconds since 1970.
    pub started_at_ms: u64,
    /// The time of the end, in milliseconds since 1970.
    pub ended_at_ms: Option<u64>,
    /// Whether the command has a terminal.
    pub terminal: bool,
    /// The size limit of the log, in bytes.
    pub log_limit: u64,
    /// The report of the verified end.
    pub report: Option<Report>,
    /// The survivors after the patience.
    pub remaining: Vec<Survivor>,
}

/// Returns all recorded execs of a sandbox, by number.
///
/// # Errors
/// When the directory of the execs cannot be read, or there are no descriptors for them.
pub fn list_execs(files: &Files) -> io::Result<Vec<ExecView>> {
    let mut evidence = ExecEvidence::default();
    let mut views = Vec::new();
    for number in ExecFiles::numbers(files)? {
        if let Some(exec) = open_listed(files, number)? {
            views.push(of(files, &exec, &mut evidence));
        }
    }
    Ok(views)
}

/// Returns the recorded execs whose end is not verified, by number. Costs less than [`list_execs`] beside many that have ended.
///
/// # Errors
/// When the directory of the execs cannot be read, or there are no descriptors for them.
pub fn running_execs(files: &Files) -> io::Result<Vec<ExecView>> {
    let mut evidence = ExecEvidence::default();
    let mut views = Vec::new();
    for number in ExecFiles::numbers(files)? {
        if let Some(exec) = open_listed(files, number)?
            && !evidence.confirms_end(files, &exec)
        {
            views.push(of(files, &exec, &mut evidence));
        }
    }
    views.retain(|view| view.status == ExecStatus::Running);
    Ok(views)
}

/// Opens an exec whose number was read. Its directory may have been removed meanwhile; another user's is no exec's.
///
/// # Errors
/// When there is no descriptor for it.
fn open_listed(files: &Files, number: u32) -> io::Result<Option<ExecFiles>> {
    match ExecFiles::open(files, number) {
        Err(error) if lacks_descriptors(&error) => Err(error),
        opened => Ok(opened.ok().flatten()),
    }
}

/// Returns one recorded exec; `None` if there is none with this number.
///
/// # Errors
/// When its directory cannot be opened.
pub fn find_exec(files: &Files, number: u32) -> io::Result<Option<ExecView>> {
    let exec = ExecFiles::open(files, number)?;
    Ok(exec.map(|exec| of(files, &exec, &mut ExecEvidence::default())))
}

/// Tells whether the end of an exec is verified, or its record is gone.
pub fn has_ended(files: &Files, number: u32) -> bool {
    match ExecFiles::open(files, number) {
        Ok(Some(exec)) => ExecEvidence::default().confirms_end(files, &exec),
        Ok(None) => true,
        Err(_) => false,
    }
}

/// The end of an exec, if it has ended.
pub(super) struct ExecEnding {
    pub(super) status: ExecStatus,
    pub(super) exit: Option<ExitStatus>,
    pub(super) cause: Option<Cause>,
    pub(super) ended_at_ms: Option<u64>,
    pub(super) report: Option<Report>,
    pub(super) remaining: Vec<Survivor>,
}

impl ExecEnding {
    /// Reads the end of an exec.
    pub(super) fn of(
        files: &Files,
        exec: &ExecFiles,
        evidence: &mut ExecEvidence,
        lingers: bool,
    ) -> ExecEnding {
        let ended = evidence.confirms_end(files, exec);
        // After the evidence: a report that was written meanwhile is not looked at.
        let report = if ended { exec.report().ok().flatten() } else { None };
        let unwritten = if ended && report.is_none() { evidence.unwritten(files, exec) } else { None };
        let report = report.or_else(|| {
            let end = unwritten.as_ref()?;
            Some(exec.report_of(end.exit, end.cause, end.level, end.at_ms))
        });
        let remaining = if ended { None } else { exec.remaining().ok().flatten() };
        let remaining = remaining.map(|remaining| remaining.survivors).unwrap_or_default();
        let exited =
            (ended || lingers || !remaining.is_empty()).then(|| exec.exited().ok().flatten()).flatten();
        let (exit, cause) = match (&report, &exited) {
            (Some(report), _) => (report.exit, Some(report.cause)),
            (None, Some(exited)) => (exited.exit, Some(exited.cause)),
            (None, None) => (None, ended.then_some(Cause::Lost)),
        };
        ExecEnding {
            status: if ended { ExecStatus::Ended } else { ExecStatus::Running },
            exit,
            cause,
            ended_at_ms: unwritten.map(|end| end.at_ms).or(exited.map(|exited| exited.at_ms)),
            report,
            remaining,
        }
    }
}

/// Builds the view of an exec.
fn of(files: &Files, exec: &ExecFiles, evidence: &mut ExecEvidence) -> ExecView {
    let described = exec.exec().ok().flatten().filter(|described| described.number == exec.number());
    let lingers = described.as_ref().is_some_and(|described| described.lingers);
    let ExecEnding { status, exit, cause, ended_at_ms, report, remaining } =
        ExecEnding::of(files, exec, evidence, lingers);
    let mut view = ExecView {
        number: exec.number(),
        command: Vec::new(),
        labels: BTreeMap::new(),
        status,
        exit,
        cause,
        leader_pid: None,
        leader_inside: None,
        started_at_ms: report.as_ref().map_or(0, |report| report.started_at_ms),
        ended_at_ms,
        terminal: false,
        log_limit: 0,
        report,
        remaining,
    };
    if let Some(described) = described {
        view.command = described.command;
        view.labels = described.labels;
        view.leader_pid = described.leader;
        view.leader_inside = described.leader_inside;
        view.started_at_ms = described.started_at_ms;
        view.terminal = described.terminal;
        view.log_limit = described.log_limit;
    }
    view
}

/// The evidence about all execs of a sandbox, collected once when a report needs it.
#[derive(Debug, Default)]
pub(super) struct ExecEvidence {
    collected: Option<CollectedEvidence>,
    /// The ends that the supervisor cannot write to a full disk.
    unwritten: Option<Vec<UnwrittenEnd>>,
}

#[derive(Debug)]
enum CollectedEvidence {
    /// The end of the sandbox is verified.
    SandboxEnded,
    /// The supervisor has listed the execs whose end is not verified.
    Listed(HashSet<u32>),
    /// The supervisor does not answer. Execs have leaves below this one, which has members.
    Leaf(PathBuf),
    /// There is no evidence.
    Unknown,
}

impl ExecEvidence {
    /// Returns the supervisor's word that the end of these execs is not verified, and that of all others is.
    pub(super) fn of_supervisor(running: impl IntoIterator<Item = u32>) -> ExecEvidence {
        ExecEvidence {
            collected: Some(CollectedEvidence::Listed(running.into_iter().collect())),
            unwritten: None,
        }
    }

    /// Returns the verified end of an exec, if a full disk kept the supervisor from writing it.
    fn unwritten(&mut self, files: &Files, exec: &ExecFiles) -> Option<UnwrittenEnd> {
        if !exec.is_unwritten() {
            return None;
        }
        let ends = self.unwritten.get_or_insert_with(|| {
            let client = SupervisorClient::connect(files, LIMIT);
            match client.and_then(|client| client.request(&Request::UnwrittenEnds, LIMIT)) {
                Ok(Answer::UnwrittenEnds(ends)) => ends,
                _ => Vec::new(),
            }
        });
        ends.iter().find(|end| end.number == exec.number()).cloned()
    }

    /// Tells whether an exec has a report that the evidence confirms.
    fn confirms_end(&mut self, files: &Files, exec: &ExecFiles) -> bool {
        if let Some(CollectedEvidence::Listed(running)) = &self.collected {
            if !running.contains(&exec.number()) || self.unwritten(files, exec).is_some() {
                return true;
            }
            if !is_written_late(exec) {
                return false;
            }
            // The list is older than the report.
            self.collected = None;
        }
        let sandbox_ended = matches!(self.collected, Some(CollectedEvidence::SandboxEnded));
        if !exec.is_reported() && !sandbox_ended {
            if self.collected.is_none() && files.lock() == LockState::Free && files.has_ended() {
                self.collected = Some(CollectedEvidence::SandboxEnded);
                return true;
            }
            if self.unwritten(files, exec).is_some() {
                return true;
            }
            if !is_written_late(exec) {
                return false;
            }
        }
        match self.collected.get_or_insert_with(|| CollectedEvidence::of(files)) {
            CollectedEvidence::SandboxEnded => true,
            CollectedEvidence::Leaf(leaf) => {
                let leaf = leaf.join(leaf_name(exec.number()));
                let error = leaf.symlink_metadata().err();
                error.is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
            }
            CollectedEvidence::Listed(running) => !running.contains(&exec.number()),
            CollectedEvidence::Unknown => false,
        }
    }
}

/// Tells whether an exec has a report that a full disk has delayed. The supervisor may have written it just now.
fn is_written_late(exec: &ExecFiles) -> bool {
    exec.is_unwritten() && exec.is_reported()
}

impl CollectedEvidence {
    fn of(files: &Files) -> CollectedEvidence {
        if files.lock() == LockState::Free && files.has_ended() {
            return CollectedEvidence::SandboxEnded;
        }
        // The supervisor replaces a forged report before it stops listing the exec.
        let client = SupervisorClient::connect(files, LIMIT);
        if let Ok(Answer::Execs(running)) = client.and_then(|client| client.request(&Request::Execs, LIMIT)) {
            return CollectedEvidence::Listed(running.into_iter().collect());
        }
        // An empty leaf means that the sandbox could not join it: then its execs have no leaves either.
        let leaf = files.intent().ok().and_then(|intent| intent.leaf);
        if let Some(leaf) = leaf
            && let Ok(Some(opened)) = Leaf::open(&leaf)
            && matches!(opened.populated(), Ok(true))
        {
            return CollectedEvidence::Leaf(leaf);
        }
        CollectedEvidence::Unknown
    }
}
