//! `penfold inspect`.

use std::io;

use clap::Args;
use penfold_control::SandboxView;
use penfold_state::time::now_ms;
use penfold_state::{Files, Intent};
use serde::Serialize;
use serde_json::Value;

use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind};
use crate::output::{self, WriteError};
use crate::sandboxes::find;
use crate::sandboxes::here::Here;
use crate::sandboxes::on_server::{self, OnServer};
use crate::sandboxes::sampler::Sampler;
use crate::text::row::Row;
use crate::text::template::{self, Format};

/// The verb `inspect`.
pub(crate) const VERB: Verb = Verb {
    name: "inspect",
    aliases: &[],
    about: "Print the complete records of sandboxes as JSON",
    description: "Prints a JSON array with the fields of `penfold ps --stats --json` and, under `files`, the files of each \
        record: the intent, the supervisor's state, the exit status of the command, and the report with the steps of \
        the teardown. A damaged file is null, and `damage` names it.",
    examples: &[
        ("penfold inspect web", "print the record of one sandbox"),
        ("penfold inspect 3f9 --format {{.Status}}", "print one field"),
    ],
    usage_failure: FailureKind::Usage,
    define: InspectArgs::augment_args,
    places: Places::All(|global, client, matches| {
        inspect_on_server(global, &OnServer(client), &usage::read(&VERB, matches)?)
    }),
    call: |global, matches| inspect(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold inspect`.
#[derive(Args, Clone, Debug)]
pub(crate) struct InspectArgs {
    /// Ids, unique prefixes of ids, or names; `-` reads them from standard input.
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
    /// Print JSON; this is the default.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print a line for each sandbox from a template with fields such as `{{.ID}}`.
    #[arg(short, long, value_name = "FORMAT", value_parser = template::format, conflicts_with = "json")]
    pub(crate) format: Option<Format>,
}

/// A sandbox with the files of its record.
#[derive(Serialize)]
struct Inspected<'a> {
    #[serde(flatten)]
    row: Row<'a>,
    files: Contents<'a>,
}

/// The files of a record; null if a file is missing or damaged.
#[derive(Serialize)]
struct Contents<'a> {
    pub(crate) intent: Option<&'a Intent>,
    pub(crate) state: Value,
    pub(crate) exit: Value,
    pub(crate) report: Value,
}

/// Prints the views and records of sandboxes.
pub(crate) fn inspect(global: &Global, args: &InspectArgs) -> Result<u8, Failure> {
    let here = Here::new(global);
    let mut chosen = find::choose(global, &here, &args.ids)?;
    if let Some(Format::Lines(template) | Format::Table(template)) = &args.format {
        let text: String = chosen.found.iter().map(|(_, seen)| template.line(seen, now_ms())).collect();
        output::data(text.as_bytes())?;
        return Ok(chosen.exit);
    }
    let numbers = Sampler::new()?.look(&here.resolver, &chosen.found);
    let mut inspected = Vec::new();
    for (known, seen) in &mut chosen.found {
        let files = known.record.as_ref();
        let contents = Contents {
            intent: known.intent.as_ref(),
            state: content("state.json", files.map(Files::state), seen),
            exit: content("exit.json", files.map(Files::exited), seen),
            report: content("report.json", files.map(Files::report), seen),
        };
        let row = Row { usage: numbers.get(&known.id).copied(), ..Row::of(seen) };
        inspected.push(Inspected { row, files: contents });
    }
    print(&inspected, args.format.as_ref())?;
    Ok(chosen.exit)
}

/// Prints the views of sandboxes of a server, with their reports. The server sends no other file of a record.
fn inspect_on_server(global: &Global, sandboxes: &OnServer, args: &InspectArgs) -> Result<u8, Failure> {
    // JSON is the default.
    let InspectArgs { ids, json: _, format } = args;
    let chosen = find::choose(global, sandboxes, ids)?;
    if let Some(Format::Lines(template) | Format::Table(template)) = format {
        let text: String = chosen.found.iter().map(|(_, seen)| template.line(seen, now_ms())).collect();
        output::data(text.as_bytes())?;
        return Ok(chosen.exit);
    }
    let mut inspected = Vec::new();
    for (view, _) in &chosen.found {
        let report = match sandboxes.0.get::<Value>(&format!("{}/report", on_server::path(&view.id))) {
            Err(error) if error.problem().is_none() => return Err(error.into()),
            report => report.unwrap_or_default(),
        };
        let files = Contents { intent: None, state: Value::Null, exit: Value::Null, report };
        inspected.push(Inspected { row: Row::of(view), files });
    }
    print(&inspected, format.as_ref())?;
    Ok(chosen.exit)
}

/// Prints an array, or an object on each line for `{{json .}}`.
fn print(inspected: &[impl Serialize], format: Option<&Format>) -> Result<(), WriteError> {
    if format != Some(&Format::JsonLines) {
        return output::json(&inspected);
    }
    let lines: Result<Vec<String>, _> = inspected.iter().map(serde_json::to_string).collect();
    let text: String = lines.map_err(WriteError::Json)?.into_iter().map(|line| line + "\n").collect();
    output::data(text.as_bytes())
}

fn content<T: Serialize>(name: &str, read: Option<io::Result<Option<T>>>, seen: &mut SandboxView) -> Value {
    match read {
        Some(Ok(Some(content))) => serde_json::to_value(content).unwrap_or_default(),
        Some(Err(error)) => {
            if !seen.damage.iter().any(|damage| damage.starts_with(name)) {
                seen.damage.push(format!("{name}: {error}"));
            }
            Value::Null
        }
        Some(Ok(None)) | None => Value::Null,
    }
}
