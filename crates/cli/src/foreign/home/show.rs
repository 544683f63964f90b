//! The output of `penfold reap --home`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use penfold_control::StopResult;
use penfold_doctor::test_home::{Evidence, Look};
use penfold_process::{ProcessId, Stat};
use penfold_state::error_chain;
use penfold_teardown::Findings;
use serde::Serialize;

use super::{EndedSandbox, Sandbox, Sweep};
use crate::args::verb::Global;
use crate::foreign::Targets;
use crate::foreign::show::{self, Mark, SCHEMA};
use crate::output::{self, WriteError};
use crate::text::lines::{self, say};

/// A process that uses the home.
#[derive(Serialize)]
struct Target {
    #[serde(flatten)]
    mark: Mark,
    /// Missing for a process that one with evidence has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    evidence: Option<Evidence>,
}

/// A sandbox with a record below the home.
#[derive(Serialize)]
struct SandboxLine {
    id: String,
    #[serde(with = "penfold_process::path_text")]
    root: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<String>,
}

/// What would be ended.
#[derive(Serialize)]
pub(super) struct Would {
    schema: u32,
    dry_run: bool,
    sandboxes: Vec<SandboxLine>,
    targets: Vec<Target>,
    left_out: Vec<Mark>,
}

impl Would {
    pub(super) fn new(
        targets: &mut Targets,
        evidence: &BTreeMap<ProcessId, Evidence>,
        sandboxes: &[Sandbox],
        look: &Look,
    ) -> Would {
        let Targets { proc, members, .. } = targets;
        let target = |stat: &Stat| Target {
            mark: show::mark(stat, proc.command_line(stat.pid)),
            evidence: evidence.get(&stat.id()).copied(),
        };
        let line = |sandbox: &Sandbox| SandboxLine {
            id: sandbox.known.id.clone(),
            root: sandbox.root.clone(),
            outcome: None,
            reasons: Vec::new(),
        };
        Would {
            schema: SCHEMA,
            dry_run: true,
            sandboxes: sandboxes.iter().map(line).collect(),
            targets: members.iter().map(target).collect(),
            left_out: left_out(&look.ancestors, &look.elsewhere),
        }
    }

    pub(super) fn print(&self, json: bool) -> Result<(), WriteError> {
        if json {
            return output::json(self);
        }
        let mut text = String::new();
        for SandboxLine { id, root, .. } in &self.sandboxes {
            lines::push(&mut text, &format!("sandbox {id} below {}", root.display()));
            text.push('\n');
        }
        if !self.targets.is_empty() {
            text.push_str("    PID  EVIDENCE           COMMAND\n");
        }
        for Target { mark, evidence } in &self.targets {
            // Writing to a String cannot fail.
            let _ = write!(text, "{:>7}  {:<17}  ", mark.pid, evidence.map_or("started by these", word));
            lines::push(&mut text, mark.command.as_deref().unwrap_or_default());
            text.push('\n');
        }
        output::data(text.as_bytes())
    }
}

fn word(evidence: Evidence) -> &'static str {
    match evidence {
        Evidence::Marker => "marker",
        Evidence::WorkingDirectory => "working directory",
        Evidence::Program => "program",
        Evidence::OpenFile => "open file",
        Evidence::MappedFile => "mapped file",
        Evidence::Arguments => "arguments",
    }
}

fn left_out(ancestors: &[Stat], elsewhere: &[Stat]) -> Vec<Mark> {
    ancestors.iter().chain(elsewhere).map(|stat| show::mark(stat, None)).collect()
}

/// The result of a sweep as JSON.
#[derive(Serialize)]
pub(super) struct Swept<'a> {
    schema: u32,
    #[serde(flatten)]
    findings: &'a Findings,
    sandboxes: Vec<SandboxLine>,
    targets: Vec<Target>,
    left_out: Vec<Mark>,
    unread: &'a [String],
}

pub(super) fn swept(sweep: &Sweep) -> Swept<'_> {
    let target = |(stat, command, evidence): &(Stat, Option<String>, Evidence)| Target {
        mark: show::mark(stat, command.clone()),
        evidence: Some(*evidence),
    };
    let line = |ended: &EndedSandbox| {
        let (outcome, reasons) = outcome(&ended.result);
        SandboxLine { id: ended.id.clone(), root: ended.root.clone(), outcome: Some(outcome), reasons }
    };
    Swept {
        schema: SCHEMA,
        findings: &sweep.findings,
        sandboxes: sweep.sandboxes.iter().map(line).collect(),
        targets: sweep.targets.values().map(target).collect(),
        left_out: left_out(&sweep.ancestors, &sweep.elsewhere),
        unread: &sweep.unread,
    }
}

fn outcome(result: &StopResult) -> (&'static str, Vec<String>) {
    match result {
        StopResult::Gone => ("gone", Vec::new()),
        StopResult::Left(survivors) => ("left", survivors.iter().map(ToString::to_string).collect()),
        StopResult::Failed(error) => ("failed", vec![error_chain(error)]),
    }
}

/// Prints what was not ended, and with `-v` the number of ended processes.
pub(super) fn messages(global: &Global, sweep: &Sweep) {
    show::messages(global, &sweep.findings);
    let mut text = String::new();
    for EndedSandbox { id, root, result } in &sweep.sandboxes {
        for reason in outcome(result).1 {
            say(&mut text, &format!("sandbox {id} below {}: {reason}", shown(root)));
        }
    }
    for unread in &sweep.unread {
        say(&mut text, unread);
    }
    if !global.quiet {
        text.push_str(&elsewhere(&sweep.elsewhere));
    }
    output::message(&text);
}

fn shown(root: &Path) -> String {
    format!("`{}`", root.display())
}

/// A line that names processes of sandboxes whose records are elsewhere.
pub(super) fn elsewhere(stats: &[Stat]) -> String {
    let mut text = String::new();
    if !stats.is_empty() {
        let named: Vec<String> =
            stats.iter().map(|stat| format!("{} ({})", stat.pid.as_raw_pid(), stat.comm)).collect();
        let words = format!("left out: {}; their sandboxes have no record there", named.join(", "));
        say(&mut text, &words);
    }
    text
}
