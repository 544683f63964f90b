//! `report`: how a sandbox ended.

use std::fmt::Write as _;

use penfold_control::Resolver;
use penfold_state::state::Status;
use penfold_state::{DescribedProcess, Report, Totals, error_chain};
use serde_json::{Value, json};

use crate::answer::{ToolAnswer, ToolError};
use crate::arguments::SandboxArguments;
use crate::find::{cause_words, exit_words, sandbox_record, sandbox_words, view_sandbox};
use crate::host::ServerState;

/// The most entries of a list in a report, and the most that the text names.
const MOST: usize = 50;
const NAMED: usize = 10;

pub(super) fn report(host: &ServerState, given: &SandboxArguments) -> Result<ToolAnswer, ToolError> {
    let (known, seen) = view_sandbox(&Resolver::new(host.root()), &given.sandbox)?;
    let name = sandbox_words(&seen.id, seen.name.as_deref());
    let report = sandbox_record(&known)?.report().map_err(|error| {
        ToolError::new(format!("cannot read the report of {name}: {}", error_chain(&error)))
    })?;
    match report {
        // The report of the last life, while the sandbox waits for the next one.
        Some(report) if !seen.status.is_living() || seen.status == Status::Waiting => Ok(ToolAnswer::new(
            report_words(&report),
            json!({ "status": seen.status, "report": bounded_report(&report) }),
        )),
        _ if seen.status.is_living() => {
            Err(ToolError::new(format!("{name} is {}; the report comes at its end", seen.status)))
        }
        _ => Err(ToolError::new(format!("{name} is {} and left no report", seen.status))),
    }
}

/// The report in words.
pub(super) fn report_words(report: &Report) -> String {
    let totals = Totals::of(&report.findings);
    let mut text = format!(
        "{}: the command {}",
        sandbox_words(&report.id, report.name.as_deref()),
        exit_words(report.exit)
    );
    if let Some(cause) = cause_words(report.cause) {
        let _ = write!(text, "; the sandbox ended because {cause}");
    }
    if totals.ended > 0 {
        let _ =
            write!(text, "; {} processes had to be ended, {} of them by SIGKILL", totals.ended, totals.kill);
    }
    let findings = &report.findings;
    text.push_str(&running_words(report));
    text.push_str(if findings.verified { "; nothing is left" } else { "; something is left" });
    text.push('\n');
    for stray in
        findings.strays().filter(|stray| !stray.name.is_empty() || stray.command.is_some()).take(NAMED)
    {
        let command = stray.command.as_deref().unwrap_or(&stray.name);
        let _ = writeln!(text, "left the tree or outlived the command: {command} (pid {})", stray.pid);
    }
    for survivor in findings.survivors.iter().take(NAMED) {
        let _ = writeln!(text, "not gone: {survivor}");
    }
    text
}

/// What ran at the time limit, in words that follow others.
pub(crate) fn running_words(report: &Report) -> String {
    let name = |ran: &DescribedProcess| {
        let listens = if ran.ports.is_empty() {
            String::new()
        } else {
            format!(", listening on {}", ran.ports.join(", "))
        };
        format!("{} (pid {}{listens})", ran.command, ran.pid)
    };
    let named: Vec<String> = report.running.iter().take(NAMED).map(name).collect();
    if named.is_empty() { String::new() } else { format!("; it was running: {}", named.join(", ")) }
}

/// The report as JSON, with at most [`MOST`] entries in each list; `cut` has the numbers of those that are left out.
pub(super) fn bounded_report(report: &Report) -> Value {
    let mut value = serde_json::to_value(report).unwrap_or_default();
    let mut cut = serde_json::Map::new();
    for (key, list) in value.as_object_mut().into_iter().flatten() {
        let Some(list) = list.as_array_mut() else { continue };
        if list.len() > MOST {
            cut.insert(key.clone(), (list.len() - MOST).into());
            list.truncate(MOST);
        }
    }
    if let Some(fields) = value.as_object_mut()
        && !cut.is_empty()
    {
        fields.insert("cut".to_owned(), cut.into());
    }
    value
}
