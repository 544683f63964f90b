//! How a sandbox ended: the report for machines and the shorter outcome for who started it.

use std::collections::BTreeMap;

use penfold_sys::child::Exit;
use penfold_teardown::{Cause, Ended, Findings, How, Level, Survivor};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

/// How the leader ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl From<Exit> for Status {
    fn from(exit: Exit) -> Status {
        match exit {
            Exit::Code(code) => Status::Code(code),
            Exit::Signal(signal) => Status::Signal(signal),
        }
    }
}

/// Why the command was not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartFailure {
    /// There is no such program.
    NotFound,
    /// There is, and it cannot be executed; an error number.
    NotExecutable(i32),
    /// Its working directory cannot be entered; an error number.
    Directory(i32),
    /// Something of ours failed; a sentence.
    Other(String),
}

/// Everything about the end of one sandbox, as `--report` writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The version of this format.
    pub schema: u32,
    /// The sandbox, as shown.
    pub id: String,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The command; what is not UTF-8 is replaced.
    pub command: Vec<String>,
    /// How membership was known.
    pub level: Level,
    /// Why it ended.
    pub cause: Cause,
    /// How the leader ended; nothing when that could not be seen.
    pub exit: Option<Status>,
    /// Why the command was not run, if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<StartFailure>,
    /// When it started, in milliseconds since 1970.
    pub started_at_ms: u64,
    /// How long it took from the start to the end of the teardown, in milliseconds.
    pub duration_ms: u64,
    /// What the host did not give, and what follows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Why the level is not a stronger one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weaker: Option<String>,
    /// What the teardown found and did.
    #[serde(flatten)]
    pub findings: Findings,
}

/// Counts over all members that were ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// All.
    pub ended: usize,
    /// After the polite signal.
    pub term: usize,
    /// By SIGKILL.
    pub kill: usize,
    /// Strays among them.
    pub strays: usize,
    /// By the number of the signal that was sent.
    #[serde(default)]
    pub signals: BTreeMap<i32, usize>,
}

impl Totals {
    /// Counts who was ended.
    pub fn of(findings: &Findings) -> Totals {
        let how = |how| findings.ended.iter().filter(|ended| ended.how == how).count();
        let mut signals = BTreeMap::new();
        for ended in &findings.ended {
            let usual = match ended.how {
                How::Term => Signal::TERM,
                How::Kill => Signal::KILL,
            };
            *signals.entry(ended.signal.unwrap_or(usual.as_raw())).or_default() += 1;
        }
        Totals {
            ended: findings.ended.len(),
            term: how(How::Term),
            kill: how(How::Kill),
            strays: findings.strays().count(),
            signals,
        }
    }
}

/// What the front is told: the report with its lists cut short, so that it always fits one message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The report; its lists hold the first strays and survivors only.
    pub report: Report,
    /// The counts over the whole lists.
    pub totals: Totals,
    /// The process that tells.
    #[serde(default)]
    pub teller: i32,
    /// It is that of a command that was put into the sandbox, not that of the sandbox.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_exec: bool,
    /// Why the report could not be written, if one was wanted and it could not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwritten: Option<String>,
}

/// How many strays and survivors the front is told.
const TOLD: usize = 32;
/// How long a text the front is told.
const TEXT: usize = 300;

impl Outcome {
    /// Cuts a report short.
    pub fn of(report: &Report, unwritten: Option<String>) -> Outcome {
        let totals = Totals::of(&report.findings);
        let mut strays: Vec<Ended> = report.findings.strays().take(TOLD).cloned().collect();
        for stray in &mut strays {
            if let Some(command) = &mut stray.command {
                command.truncate(floor(command, TEXT));
            }
        }
        let mut survivors: Vec<Survivor> = report.findings.survivors.iter().take(TOLD).cloned().collect();
        for survivor in &mut survivors {
            let (Survivor::Process { reason, .. }
            | Survivor::Resource { reason, .. }
            | Survivor::Unknown { reason }) = survivor;
            reason.truncate(floor(reason, TEXT));
        }
        let findings = Findings { ended: strays, survivors, steps: Vec::new(), ..report.findings.clone() };
        let report = Report { findings, command: Vec::new(), labels: BTreeMap::new(), ..report.clone() };
        let teller = rustix::process::getpid().as_raw_nonzero().get();
        Outcome { report, totals, teller, of_exec: false, unwritten }
    }
}

fn floor(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|&index| text.is_char_boundary(index)).unwrap_or(0)
}
