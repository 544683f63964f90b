//! The output of `penfold reap`.

use std::fmt::Write as _;

use penfold_process::{ProcFs, Stat};
use penfold_teardown::{EndedBy, Findings, Search};
use serde::Serialize;

use crate::args::verb::Global;
use crate::exit_codes;
use crate::output::{self, WriteError};
use crate::text::lines::{self, count, say};
use crate::text::summary;

pub(super) const SCHEMA: u32 = penfold_teardown::report::SCHEMA;

/// A process in the JSON output: identity and name.
#[derive(Serialize)]
pub(crate) struct Mark {
    pub(super) pid: i32,
    start_time: u64,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) command: Option<String>,
}

pub(super) fn marks(stats: &[Stat]) -> Vec<Mark> {
    stats.iter().map(|stat| mark(stat, None)).collect()
}

pub(super) fn mark(stat: &Stat, command: Option<String>) -> Mark {
    Mark { pid: stat.pid.as_raw_pid(), start_time: stat.start.0, name: stat.comm.clone(), command }
}

/// The result of an end.
#[derive(Serialize)]
pub(crate) struct Ended {
    schema: u32,
    #[serde(flatten)]
    pub(crate) findings: Findings,
    left_out: Vec<Mark>,
}

impl Ended {
    pub(super) fn new(findings: Findings, left_out: Vec<Mark>) -> Ended {
        Ended { schema: SCHEMA, findings, left_out }
    }

    /// The result if there was no process.
    pub(crate) fn nothing() -> Ended {
        Ended::new(Findings { verified: true, ..Findings::default() }, Vec::new())
    }

    pub(crate) fn exit_code(&self) -> u8 {
        if self.findings.verified { exit_codes::SUCCESS } else { exit_codes::STILL_THERE }
    }
}

#[derive(Serialize)]
struct Would {
    schema: u32,
    dry_run: bool,
    targets: Vec<Mark>,
    left_out: Vec<Mark>,
}

/// A line that names the matching processes that penfold never ends, without penfold itself.
pub(super) fn left_out(search: &Search) -> String {
    let own = rustix::process::getpid();
    let named: Vec<String> = search
        .left_out()
        .iter()
        .filter(|stat| stat.pid != own)
        .map(|stat| format!("{} ({})", stat.pid.as_raw_pid(), stat.comm))
        .collect();
    let mut text = String::new();
    if !named.is_empty() {
        say(
            &mut text,
            &format!("left out: {}; penfold never ends pid 1 or its own ancestors", named.join(", ")),
        );
    }
    text
}

/// Lists the processes that would be ended.
pub(super) fn would_end(
    proc: &mut ProcFs,
    members: &[Stat],
    search: &Search,
    json: bool,
) -> Result<u8, WriteError> {
    let targets: Vec<Mark> = members.iter().map(|stat| mark(stat, proc.command_line(stat.pid))).collect();
    if json {
        let would = Would { schema: SCHEMA, dry_run: true, targets, left_out: marks(search.left_out()) };
        output::json(&would)?;
        return Ok(exit_codes::SUCCESS);
    }
    let mut text = String::new();
    if !targets.is_empty() {
        text.push_str("    PID       START  NAME             COMMAND\n");
    }
    for target in &targets {
        // Writing to a String cannot fail.
        let _ = write!(text, "{:>7}  {:>10}  ", target.pid, target.start_time);
        lines::push(
            &mut text,
            &format!("{:<15}  {}", target.name, target.command.as_deref().unwrap_or_default()),
        );
        text.push('\n');
    }
    output::data(text.as_bytes())?;
    Ok(exit_codes::SUCCESS)
}

/// Prints the survivors on standard error, with `-v` also the number of ended processes.
pub(crate) fn messages(global: &Global, findings: &Findings) {
    let mut text = String::new();
    if global.verbose > 0 {
        let by = |how: EndedBy| findings.ended.iter().filter(|ended| ended.how == how).count();
        let took = summary::human(std::time::Duration::from_micros(findings.took_us));
        let ended = count(findings.ended.len(), "process", "processes");
        say(
            &mut text,
            &format!("ended {ended} ({} asked, {} killed) in {took}", by(EndedBy::Term), by(EndedBy::Kill)),
        );
    }
    for survivor in &findings.survivors {
        say(&mut text, &format!("not gone: {survivor}"));
    }
    output::message(&text);
}

/// Prints the JSON of a call that found no process.
pub(super) fn nothing_as_json(dry_run: bool) -> Result<(), WriteError> {
    if dry_run {
        let would = Would { schema: SCHEMA, dry_run, targets: Vec::new(), left_out: Vec::new() };
        return output::json(&would);
    }
    output::json(&Ended::nothing())
}
