//! The recorded execs whose supervisor has exited, until their verified end is on disk.

use std::path::Path;
use std::time::{Duration, Instant};

use penfold_cgroup::{KilledLeaf, Leaf};
use penfold_process::ProcFs;
use penfold_state::time::now_ms;
use penfold_state::wire::UnwrittenEnd;
use penfold_state::{ExecFiles, ExitStatus, Files};
use penfold_teardown::{Cause, Level, Survivor};

use crate::end_cell::{EndCell, SeenEnd};

/// The interval of looks at an exec that has lost its supervisor.
const LOOK: Duration = Duration::from_millis(2);
const LOOK_STUCK: Duration = Duration::from_millis(500);
/// The most unwritten ends in one message, which has a size limit.
const MAX_UNWRITTEN: usize = 1000;

/// The record of an exec, as the sandbox's supervisor knows it.
#[derive(Debug)]
pub(crate) struct RecordOfExec {
    pub(crate) number: u32,
    /// `None` after a takeover.
    pub(crate) cell: Option<EndCell>,
}

/// The recorded execs without a supervisor and without a verified end on disk.
#[derive(Default)]
pub(crate) struct EndedExecs(Vec<EndedExec>);

struct EndedExec {
    recorded: RecordOfExec,
    members: OrphanMembers,
    since: Instant,
    looked: Instant,
    /// The survivors, or the lost exit, are on disk.
    noted: bool,
    /// The verified end, if it could not be written so far.
    unwritten: Option<UnwrittenEnd>,
}

/// The members of an exec that has lost its supervisor.
enum OrphanMembers {
    /// The members were in this leaf.
    Killed(KilledLeaf),
    /// The leaf cannot be opened or killed.
    Unknown(String),
    /// The exec had no leaf. Its members are children of the sandbox's supervisor now, and end with the sandbox.
    Unbound,
    /// There is no leaf any more.
    Gone,
}

impl EndedExecs {
    /// Adds an exec whose supervisor has exited, and kills its leaf.
    pub(crate) fn add(&mut self, recorded: RecordOfExec, leaf: Option<&Path>) {
        let members = match leaf.map(Leaf::open) {
            None => OrphanMembers::Unbound,
            Some(Ok(None)) => OrphanMembers::Gone,
            Some(Ok(Some(leaf))) => match leaf.kill() {
                Ok(killed) => OrphanMembers::Killed(killed),
                Err(error) => OrphanMembers::Unknown(error.to_string()),
            },
            Some(Err(error)) => OrphanMembers::Unknown(error.to_string()),
        };
        self.0.push(EndedExec::new(recorded, members));
    }

    /// Adds an exec of a sandbox whose end is verified.
    pub(crate) fn add_gone(&mut self, recorded: RecordOfExec) {
        self.0.push(EndedExec::new(recorded, OrphanMembers::Gone));
    }

    /// Returns the numbers of the execs.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|ended| ended.recorded.number)
    }

    /// Returns the verified ends that could not be written so far.
    pub(crate) fn unwritten(&self) -> Vec<UnwrittenEnd> {
        self.0.iter().filter_map(|ended| ended.unwritten.clone()).take(MAX_UNWRITTEN).collect()
    }

    /// Returns the time until the next look; `None` if there is nothing to look at.
    pub(crate) fn next_look(&self) -> Option<Duration> {
        let awaited = self.0.iter().filter(|ended| !matches!(ended.members, OrphanMembers::Unbound));
        awaited.map(|ended| if ended.noted { LOOK_STUCK } else { LOOK }).min()
    }

    /// Writes the ends of execs that are gone, and the survivors of those that are not gone after `patience`.
    pub(crate) fn settle(&mut self, files: &Files, level: Level, patience: Duration) {
        self.0.retain_mut(|ended| !ended.settle(files, level, patience));
    }

    /// Writes the ends of all execs, after the verified end of the sandbox, which had this cause.
    pub(crate) fn conclude(&mut self, files: &Files, cause: Cause, level: Level) {
        for ended in self.0.drain(..) {
            let is_reported = || {
                let opened = ExecFiles::open(files, ended.recorded.number);
                opened.is_ok_and(|exec| exec.is_some_and(|exec| exec.is_reported()))
            };
            // After a takeover, the report of an exec that ended by itself cannot be told from a forged one.
            if ended.recorded.cell.is_none() && is_reported() {
                continue;
            }
            let seen = ended.recorded.seen();
            let cause = seen.map_or_else(|| cause_of_exec(cause), |seen| seen.cause);
            let end = ended.recorded.end(seen.and_then(|seen| seen.exit), cause, level);
            let _ = write(files, &end);
        }
    }
}

impl EndedExec {
    fn new(recorded: RecordOfExec, members: OrphanMembers) -> EndedExec {
        let now = Instant::now();
        EndedExec { recorded, members, since: now, looked: now, noted: false, unwritten: None }
    }

    /// Writes the verified end. False on a full disk.
    fn write(&mut self, files: &Files, exit: Option<ExitStatus>, cause: Cause, level: Level) -> bool {
        let is_first = self.unwritten.is_none();
        // A later try has the time of the first one.
        let end = self.unwritten.take().unwrap_or_else(|| self.recorded.end(exit, cause, level));
        if write(files, &end) {
            return true;
        }
        if is_first && let Ok(Some(exec)) = ExecFiles::open(files, end.number) {
            exec.mark_unwritten();
        }
        self.unwritten = Some(end);
        false
    }

    /// True if the end is on disk, or nobody wants to read it.
    fn settle(&mut self, files: &Files, level: Level, patience: Duration) -> bool {
        let seen = self.recorded.seen();
        if let Some(SeenEnd { exit, cause, verified: true }) = seen {
            self.noted = true;
            if cause == Cause::StartFailed
                && let Ok(Some(exec)) = ExecFiles::open(files, self.recorded.number)
                && !exec.is_reported()
            {
                // The client has been refused.
                let _ = exec.remove(files);
                return true;
            }
            return self.write(files, exit, cause, level);
        }
        let exit = seen.and_then(|seen| seen.exit);
        let gone = match &self.members {
            OrphanMembers::Gone => true,
            OrphanMembers::Killed(leaf) => matches!(leaf.populated(), Ok(false)),
            OrphanMembers::Unknown(_) | OrphanMembers::Unbound => false,
        };
        let reported = || {
            let opened = ExecFiles::open(files, self.recorded.number);
            !matches!(opened, Ok(Some(exec)) if !exec.is_reported())
        };
        if self.recorded.cell.is_none()
            && matches!(self.members, OrphanMembers::Gone | OrphanMembers::Unbound)
            && reported()
        {
            // After a takeover: the exec supervisor removes its leaf and writes the report last.
            return true;
        }
        if gone {
            if let OrphanMembers::Killed(leaf) = std::mem::replace(&mut self.members, OrphanMembers::Gone)
                && let Err(failed) = leaf.remove()
            {
                self.members = OrphanMembers::Killed(failed.leaf);
                return false;
            }
            self.noted = true;
            return self.write(files, exit, Cause::Lost, level);
        }
        self.note(files, exit, patience);
        false
    }

    /// Kills the members again, and writes them to disk when the patience is over.
    fn note(&mut self, files: &Files, exit: Option<ExitStatus>, patience: Duration) {
        if self.looked.elapsed() >= LOOK
            && let (OrphanMembers::Killed(leaf), Ok(mut proc)) = (&self.members, ProcFs::open())
        {
            self.looked = Instant::now();
            let _ = leaf.kill_again(&mut proc);
        }
        let waits = matches!(self.members, OrphanMembers::Killed(_)) && self.since.elapsed() < patience;
        if self.noted || waits {
            return;
        }
        self.noted = true;
        let Ok(Some(exec)) = ExecFiles::open(files, self.recorded.number) else { return };
        let lost = penfold_state::state::CommandExit {
            schema: penfold_state::record::SCHEMA,
            exit,
            cause: Cause::Lost,
            at_ms: now_ms(),
        };
        let _ = exec.replace_exited(&lost);
        let reason = match &self.members {
            OrphanMembers::Killed(leaf) => format!("`{}` still has members", leaf.path().display()),
            OrphanMembers::Unknown(reason) => reason.clone(),
            OrphanMembers::Gone | OrphanMembers::Unbound => {
                "the exec supervisor was killed; without a cgroup, members of the exec end with the sandbox"
                    .to_owned()
            }
        };
        let _ = exec.write_remaining(&[Survivor::Unknown { reason }]);
    }
}

impl RecordOfExec {
    /// Returns the end that the exec supervisor has seen.
    fn seen(&self) -> Option<SeenEnd> {
        self.cell.as_ref().and_then(EndCell::load)
    }

    /// Describes a verified end that is seen now.
    fn end(&self, exit: Option<ExitStatus>, cause: Cause, level: Level) -> UnwrittenEnd {
        UnwrittenEnd { number: self.number, exit, cause, level, at_ms: now_ms() }
    }
}

/// Returns the cause of an exec's end for the cause of its sandbox's end.
fn cause_of_exec(cause: Cause) -> Cause {
    match cause {
        // The exec was killed because the sandbox's command had ended.
        Cause::Exit | Cause::Signal | Cause::StartFailed | Cause::Memory | Cause::Oom => Cause::Kill,
        cause => cause,
    }
}

/// Writes a verified end, unless it is on disk. False on a full disk.
fn write(files: &Files, end: &UnwrittenEnd) -> bool {
    let &UnwrittenEnd { number, exit, cause, level, at_ms } = end;
    let Ok(Some(exec)) = ExecFiles::open(files, number) else { return true };
    let written = exec.report().ok().flatten();
    if written.is_some_and(|report| report.exit == exit && report.cause == cause && report.findings.verified)
    {
        return true;
    }
    exec.replace_end(exit, cause, level, at_ms).is_ok()
}
