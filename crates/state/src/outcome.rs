//! The end of a sandbox: the report for programs, and the shorter outcome for the launcher.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use penfold_cgroup::Limits;
use penfold_sys::child::Exit;
use penfold_teardown::report::{SPARE, TeardownStep};
use penfold_teardown::{Cause, EndedBy, EndedMember, Findings, Level, SparedProcess, Survivor};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::name_text;
use crate::requester::Requester;

/// How the leader ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExitStatus {
    /// The leader exited with this code.
    Code(i32),
    /// This signal ended the leader.
    Signal(i32),
}

impl From<Exit> for ExitStatus {
    fn from(exit: Exit) -> ExitStatus {
        match exit {
            Exit::Code(code) => ExitStatus::Code(code),
            Exit::Signal(signal) => ExitStatus::Signal(signal),
        }
    }
}

/// `3` or `signal 9`.
impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExitStatus::Code(code) => write!(f, "{code}"),
            ExitStatus::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// Why the command was not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartFailure {
    /// The program does not exist.
    NotFound,
    /// The program exists and cannot be executed; an error number.
    NotExecutable(i32),
    /// The working directory cannot be entered; an error number.
    Directory(i32),
    /// An operation of penfold failed; a sentence.
    Other(String),
}

/// The end of one sandbox in full, as `--report` writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The version of this format.
    pub schema: u32,
    /// The short id.
    pub id: String,
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The command; bytes that are not UTF-8 are replaced.
    pub command: Vec<String>,
    /// How membership was known.
    pub level: Level,
    /// Why the sandbox ended.
    pub cause: Cause,
    /// Who requested the end, if a request or signal ended the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Requester>,
    /// How the leader ended; `None` if unknown.
    pub exit: Option<ExitStatus>,
    /// The limits of the leaf.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// Why the command was not run, if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<StartFailure>,
    /// The number of the life that has ended, if the sandbox was restarted before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life: Option<u32>,
    /// The time of the start, in milliseconds since 1970.
    pub started_at_ms: u64,
    /// The time from the start to the end of the teardown, in milliseconds.
    pub duration_ms: u64,
    /// The features that the host lacks, and the consequences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Why the level is not a stronger one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weaker: Option<String>,
    /// What ran when the time limit was reached: the youngest of the processes without children first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub running: Vec<DescribedProcess>,
    /// The strays as they were before they were ended, if they were to be described.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaks: Vec<DescribedProcess>,
    /// What is left of members besides processes, as far as it was looked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<LeakedObject>,
    /// The clients of container engines that were among the members. What such a client starts is a process of its engine, and no member.
    /// They are looked for only by `guard`, for `--fail-on-leak` and `--report`, and among the members that penfold ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub engine_clients: Vec<String>,
    /// The numbers of entries that were left out of a report in the history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub omitted: Option<OmittedCounts>,
    /// The findings of the teardown.
    #[serde(flatten)]
    pub findings: Findings,
}

/// The numbers of entries that a kept report leaves out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OmittedCounts {
    /// Members that were ended.
    pub ended: usize,
    /// The strays among them.
    pub strays: usize,
    /// Survivors.
    pub survivors: usize,
}

/// A process that outlived the leader of its sandbox, or that ran at its time limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescribedProcess {
    /// The pid, in penfold's pid namespace.
    pub pid: i32,
    /// The start time in clock ticks since boot.
    pub start_time: u64,
    /// The command line, shortened.
    pub command: String,
    /// The age in milliseconds, if it was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// The working directory, if readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(with = "penfold_process::path_text")]
    pub directory: Option<PathBuf>,
    /// The parents that were seen, nearest first, up to the leader.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parents: Vec<FormerParent>,
    /// The test that started the process, if its environment names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<String>,
    /// The TCP ports on which the process listens, `ADDRESS:PORT`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// The first files that the process has open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(with = "penfold_process::path_text")]
    pub files: Vec<PathBuf>,
}

impl DescribedProcess {
    /// Describes a stray by what the teardown knows of it.
    pub fn of(stray: &EndedMember) -> DescribedProcess {
        let command = stray.command.clone().unwrap_or_else(|| stray.name.clone());
        DescribedProcess::named(stray.pid, stray.start_time, command)
    }

    /// Names a process by its pid, its start time and its command.
    pub fn named(pid: i32, start_time: u64, command: String) -> DescribedProcess {
        DescribedProcess {
            pid,
            start_time,
            command,
            age_ms: None,
            directory: None,
            parents: Vec::new(),
            test: None,
            ports: Vec::new(),
            files: Vec::new(),
        }
    }
}

/// An object that a member has made and not removed, and that is no process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeakedObject {
    /// The kind: `socket`, `SysV shared memory`, `SysV message queue`.
    pub kind: String,
    /// The path, or the number.
    pub name: String,
    /// The pid of the member.
    pub pid: i32,
    /// Its command line, shortened.
    pub command: String,
}

/// An earlier parent of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerParent {
    /// The pid.
    pub pid: i32,
    /// The command line, shortened.
    pub command: String,
}

/// Counts over all members that were ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// All members that were ended.
    pub ended: usize,
    /// Members that ended by the polite signal.
    pub term: usize,
    /// Members that ended by SIGKILL.
    pub kill: usize,
    /// Strays.
    pub strays: usize,
    /// Members by the number of the signal that was sent.
    #[serde(default)]
    pub signals: BTreeMap<i32, usize>,
}

impl Totals {
    /// Counts the members that were ended.
    pub fn of(findings: &Findings) -> Totals {
        let how = |how| findings.ended.iter().filter(|ended| ended.how == how).count();
        let mut signals = BTreeMap::new();
        for ended in &findings.ended {
            let usual = match ended.how {
                EndedBy::Term => Signal::TERM,
                EndedBy::Kill => Signal::KILL,
            };
            *signals.entry(ended.signal.unwrap_or(usual.as_raw())).or_default() += 1;
        }
        Totals {
            ended: findings.ended.len(),
            term: how(EndedBy::Term),
            kill: how(EndedBy::Kill),
            strays: findings.strays().count(),
            signals,
        }
    }
}

/// The supervisor's message to the launcher: the report with its lists cut, so that it always fits one message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The report; its lists hold only the first strays, spared processes and survivors.
    pub report: Report,
    /// The counts over the whole lists.
    pub totals: Totals,
    /// The pid of the sender.
    #[serde(default)]
    pub teller: i32,
    /// Whether the outcome is that of an exec, not of the sandbox.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_exec: bool,
    /// The number of the recorded exec whose outcome it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<u32>,
    /// Why the requested report could not be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwritten: Option<String>,
    /// The living sandbox that has the name, if that is why nothing was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_holder: Option<String>,
}

/// The most strays and survivors in an outcome.
const MAX_LISTED: usize = 32;
/// The most processes that are named, and ports of one, in an outcome of a time limit.
const MAX_NAMED: usize = 4;
/// The longest text in an outcome.
const TEXT: usize = 300;

impl Outcome {
    /// Cuts a report.
    pub fn of(report: &Report, unwritten: Option<String>) -> Outcome {
        let totals = Totals::of(&report.findings);
        let mut strays: Vec<EndedMember> = report.findings.strays().take(MAX_LISTED).cloned().collect();
        for stray in &mut strays {
            if let Some(command) = &mut stray.command {
                command.truncate(floor_boundary(command, TEXT));
            }
        }
        let mut survivors: Vec<Survivor> =
            report.findings.survivors.iter().take(MAX_LISTED).cloned().collect();
        for survivor in &mut survivors {
            let (Survivor::Process { reason, .. }
            | Survivor::Resource { reason, .. }
            | Survivor::Unknown { reason }) = survivor;
            reason.truncate(floor_boundary(reason, TEXT));
        }
        let mut spared: Vec<SparedProcess> =
            report.findings.spared.iter().take(MAX_LISTED).cloned().collect();
        for SparedProcess { command, rule, cgroup, .. } in &mut spared {
            for text in [Some(command), Some(rule), cgroup.as_mut()].into_iter().flatten() {
                text.truncate(floor_boundary(text, TEXT));
            }
        }
        // Only why a process could not be spared, which people are told.
        let mut steps: Vec<TeardownStep> =
            report.findings.steps.iter().filter(|step| step.what == SPARE).cloned().collect();
        steps.truncate(MAX_LISTED);
        for error in steps.iter_mut().filter_map(|step| step.error.as_mut()) {
            error.truncate(floor_boundary(error, TEXT));
        }
        let mut running: Vec<DescribedProcess> = report.running.iter().take(MAX_NAMED).cloned().collect();
        for DescribedProcess { command, test, ports, directory, .. } in &mut running {
            for text in [Some(command), test.as_mut()].into_iter().flatten() {
                text.truncate(floor_boundary(text, TEXT));
            }
            ports.truncate(MAX_NAMED);
            *directory = None;
        }
        let outside = report.findings.outside.iter().take(MAX_LISTED).cloned().collect();
        let findings =
            Findings { ended: strays, spared, outside, survivors, steps, ..report.findings.clone() };
        let report = Report {
            findings,
            command: Vec::new(),
            labels: BTreeMap::new(),
            running,
            leaks: Vec::new(),
            objects: Vec::new(),
            ..report.clone()
        };
        let teller = rustix::process::getpid().as_raw_nonzero().get();
        Outcome { report, totals, teller, of_exec: false, exec: None, unwritten, name_holder: None }
    }
}

/// Shortens a text to at most this many bytes.
pub(crate) fn cut_text(text: &mut String, most: usize) {
    text.truncate(floor_boundary(text, most));
}

/// Shortens a command to at most this many bytes, blanks between its words included.
pub(crate) fn cut_command(command: &mut Vec<String>, most: usize) {
    let mut left = most;
    command.retain_mut(|word| {
        let kept = left > 0;
        cut_text(word, left);
        left = left.saturating_sub(word.len() + 1);
        kept
    });
}

/// Keeps labels that have at most this many bytes together.
pub(crate) fn cut_labels(labels: &mut BTreeMap<String, String>, most: usize) {
    let mut left = most;
    labels.retain(|key, value| {
        // The tenant decides who is told; its name is short.
        let fits = key == name_text::TENANT || key.len() + value.len() <= left;
        left = left.saturating_sub(if fits { key.len() + value.len() } else { 0 });
        fits
    });
}

pub(crate) fn floor_boundary(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|&index| text.is_char_boundary(index)).unwrap_or(0)
}
