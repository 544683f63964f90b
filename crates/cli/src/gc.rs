//! `penfold gc`: what it does.

use std::fmt::Write as _;
use std::io::{BufRead, IsTerminal};
use std::time::Duration;

use penfold_sandbox::leaks::{self, Leak, Survey};
use penfold_teardown::Findings;
use serde::Serialize;

use crate::args::Global;
use crate::args::gc::GcArgs;
use crate::doctor::{describe, temporary};
use crate::failure::Failure;
use crate::lines::{self, count, say};
use crate::{exit_codes, output, state};

/// What is younger is left alone if nothing else is said.
pub(crate) const USUAL_AGE: Duration = Duration::from_mins(10);
/// How long a kill may take until what is left is named.
const PATIENCE: Duration = Duration::from_secs(10);

/// What became of a leak.
#[derive(Serialize)]
struct Collected {
    #[serde(flatten)]
    leak: Leak,
    /// `removed`, `would remove`, `kept`, `failed`.
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    findings: Option<Findings>,
    #[serde(skip)]
    forbidden: bool,
}

#[derive(Serialize)]
struct Answer<'a> {
    schema: u32,
    dry_run: bool,
    complete: bool,
    unread: &'a [String],
    leaks: &'a [Collected],
}

/// Ends and removes what outlived its sandbox.
pub(crate) fn gc(global: &Global, args: &GcArgs) -> Result<u8, Failure> {
    let mut survey = look(global)?;
    if !args.dry_run && !args.force && survey.leaks.iter().any(|leak| refusal(leak, &survey, args).is_none())
    {
        confirm(global, args, &survey)?;
        // What the question was about may have changed while it was open.
        survey = look(global)?;
    }
    let root = state::root(global);
    let leaks = std::mem::take(&mut survey.leaks);
    let collected: Vec<Collected> = leaks
        .into_iter()
        .map(|leak| match refusal(&leak, &survey, args) {
            Some(reason) => kept(leak, reason),
            None if args.dry_run => {
                Collected { leak, outcome: "would remove", reason: None, findings: None, forbidden: false }
            }
            None => collect(leak, &root),
        })
        .collect();
    if args.json {
        let schema = penfold_teardown::report::SCHEMA;
        let (complete, unread) = (survey.complete, survey.unread.as_slice());
        let result = Answer { schema, dry_run: args.dry_run, complete, unread, leaks: &collected };
        lines::json(&result, exit_codes::FAILURE)?;
    }
    tell(global, args, &survey, &collected)?;
    Ok(exit_code(&survey, &collected))
}

fn look(global: &Global) -> Result<Survey, Failure> {
    leaks::look(&state::root(global), &temporary())
        .map_err(|error| Failure::new(exit_codes::FAILURE, "cannot look at this host").because(error))
}

/// Why a leak is left alone.
fn refusal(leak: &Leak, survey: &Survey, args: &GcArgs) -> Option<String> {
    if leak.is_certain() {
        return None;
    }
    if !survey.complete {
        return Some("not everything could be looked at, so it may be alive".to_owned());
    }
    (leak.age() < args.older_than).then(|| "younger than --older-than".to_owned())
}

fn kept(leak: Leak, reason: String) -> Collected {
    Collected { leak, outcome: "kept", reason: Some(reason), findings: None, forbidden: false }
}

fn collect(leak: Leak, root: &std::path::Path) -> Collected {
    match leaks::collect(&leak, root, PATIENCE) {
        Ok(findings) => {
            let outcome = if findings.verified { "removed" } else { "failed" };
            Collected { leak, outcome, reason: None, findings: Some(findings), forbidden: false }
        }
        Err(error) => Collected {
            leak,
            outcome: "failed",
            forbidden: error.kind() == std::io::ErrorKind::PermissionDenied,
            reason: Some(error.to_string()),
            findings: None,
        },
    }
}

/// Asks a person; refuses where there is none.
fn confirm(global: &Global, args: &GcArgs, survey: &Survey) -> Result<(), Failure> {
    let wanted: Vec<&Leak> =
        survey.leaks.iter().filter(|leak| refusal(leak, survey, args).is_none()).collect();
    let number = count(wanted.len(), "leak", "leaks");
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        let sentence = format!("refused to end and remove {number} without being asked twice");
        return Err(
            Failure::new(exit_codes::USAGE, sentence).hint(format!("`{}` does it", command(global, args)))
        );
    }
    let mut text = String::new();
    for leak in wanted {
        lines::push(&mut text, &format!("  {}", describe(leak)));
        text.push('\n');
    }
    let _ = write!(text, "End and remove {number}? [y/N] ");
    output::talk(&text);
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    if read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(Failure::new(exit_codes::USAGE, "nothing was removed"))
}

/// The command to type.
fn command(global: &Global, args: &GcArgs) -> String {
    let root = global.root.as_ref().map_or_else(String::new, |root| format!(" --root {}", root.display()));
    let age = if args.older_than == USUAL_AGE {
        String::new()
    } else {
        format!(" --older-than {}", args.older_than.as_secs_f64())
    };
    format!("penfold{root} gc -f{age}")
}

fn tell(global: &Global, args: &GcArgs, survey: &Survey, collected: &[Collected]) -> Result<(), Failure> {
    let mut data = String::new();
    let mut talk = String::new();
    for unread in &survey.unread {
        say(&mut talk, &format!("not seen: {unread}"));
    }
    for one in collected {
        let reason = one.reason.as_deref().map_or_else(String::new, |reason| format!(": {reason}"));
        let line = format!("{} {}{reason}", one.outcome, describe(&one.leak));
        match one.outcome {
            "failed" => say(&mut talk, &format!("not gone: {}{reason}", describe(&one.leak))),
            "kept" if !global.quiet => say(&mut talk, &line),
            "kept" => {}
            _ => {
                lines::push(&mut data, &line);
                data.push('\n');
            }
        }
        for survivor in one.findings.iter().flat_map(|findings| &findings.survivors) {
            say(&mut talk, &format!("not gone: {survivor}"));
        }
    }
    output::talk(&talk);
    if args.json || (global.quiet && !args.dry_run) {
        Ok(())
    } else {
        output::data(data.as_bytes(), exit_codes::FAILURE)
    }
}

fn exit_code(survey: &Survey, collected: &[Collected]) -> u8 {
    let failed: Vec<&Collected> = collected.iter().filter(|one| one.outcome == "failed").collect();
    let unjudged = !survey.complete && collected.iter().any(|one| one.outcome == "kept");
    if !failed.is_empty() && failed.iter().all(|one| one.forbidden) {
        exit_codes::NOT_PERMITTED
    } else if !failed.is_empty() || unjudged {
        exit_codes::STILL_THERE
    } else {
        exit_codes::SUCCESS
    }
}
