//! `penfold inspect`.

use std::io;

use clap::Args;
use penfold_control::View;
use penfold_state::time::now_ms;
use penfold_state::{Files, Intent};
use serde::Serialize;
use serde_json::Value;

use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::failure::{Failure, FailureKind};
use crate::output;
use crate::sandboxes::find;
use crate::text::row::Row;
use crate::text::template::{self, Format};

/// The verb `inspect`.
pub(crate) const VERB: Verb = Verb {
    name: "inspect",
    aliases: &[],
    about: "Print everything about sandboxes, as JSON",
    description: "Prints all that is known of sandboxes as a JSON array: what `penfold ps --json` prints, and below \
        `files` what their records hold: what was meant to be, what the supervisor says, how the command ended, the \
        report of the teardown with its steps. A file that is damaged is null and named in `damage`.",
    examples: &[
        ("penfold inspect web", "all about one sandbox"),
        ("penfold inspect 3f9 --format {{.Status}}", "one field of it"),
    ],
    usage_failure: FailureKind::Usage,
    define: InspectArgs::augment_args,
    call: |global, matches| inspect(global, &usage::read(&VERB, matches)?),
};

/// What `penfold inspect` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct InspectArgs {
    /// Ids, unique beginnings of ids, or names; `-` reads them from standard input.
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
    /// Print JSON, as is done anyway.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print a line for each as this says: text with fields such as `{{.ID}}`.
    #[arg(long, value_name = "FORMAT", value_parser = template::format, conflicts_with = "json")]
    pub(crate) format: Option<Format>,
}

#[derive(Serialize)]
struct Inspected<'a> {
    #[serde(flatten)]
    row: Row<'a>,
    files: Contents<'a>,
}

/// The files of a record; null when one is missing or damaged.
#[derive(Serialize)]
struct Contents<'a> {
    intent: Option<&'a Intent>,
    state: Value,
    exit: Value,
    report: Value,
}

/// Prints all that is known of sandboxes.
pub(crate) fn inspect(global: &Global, args: &InspectArgs) -> Result<u8, Failure> {
    let resolver = find::resolver(global);
    let mut chosen = find::choose(global, &resolver, &args.ids)?;
    if let Some(Format::Lines(template) | Format::Table(template)) = &args.format {
        let text: String = chosen.found.iter().map(|(_, seen)| template.line(seen, now_ms())).collect();
        output::data(text.as_bytes())?;
        return Ok(chosen.exit);
    }
    let mut inspected = Vec::new();
    for (known, seen) in &mut chosen.found {
        let files = known.record.as_ref();
        let contents = Contents {
            intent: known.intent.as_ref(),
            state: content("state.json", files.map(Files::state), seen),
            exit: content("exit.json", files.map(Files::exited), seen),
            report: content("report.json", files.map(Files::report), seen),
        };
        inspected.push(Inspected { row: Row::of(seen), files: contents });
    }
    output::json(&inspected)?;
    Ok(chosen.exit)
}

fn content<T: Serialize>(name: &str, read: Option<io::Result<Option<T>>>, seen: &mut View) -> Value {
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
