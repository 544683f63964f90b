//! `ps` of several hosts: each lists its own sandboxes at the same time, and the rows are merged.

use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::args::verb::Global;
use crate::commands::ps::PsArgs;
use crate::failure::{Failure, FailureKind};
use crate::place::RemotePlace;
use crate::text::table;
use crate::{exit_codes, output, surroundings};

/// The columns that each place prints, as its own `ps` does.
const COLUMNS: &str = "{{.ID}}\t{{.Name}}\t{{.Status}}\t{{.RunningFor}}\t{{.Command}}";
/// Their titles, after that of the place.
const TITLES: [&str; 6] = ["HOST", "ID", "NAME", "STATUS", "STARTED", "COMMAND"];

/// Lists the sandboxes of all these places, with the place of each. A place that cannot be asked says why, and the others are listed.
pub(super) fn ps(places: &[RemotePlace], global: &Global, args: &PsArgs) -> Result<u8, Failure> {
    let flags = [
        (args.format.is_some(), "--format"),
        (args.all_users, "--all-users"),
        (args.containers, "--containers"),
        (args.stats, "--stats"),
        (args.ports, "--ports"),
        (args.watch, "--watch"),
    ];
    if let Some((_, flag)) = flags.into_iter().find(|(given, _)| *given) {
        return Err(Failure::new(FailureKind::Usage, format!("`penfold ps {flag}` takes one host only"))
            .hint("`--json` has the field `host`"));
    }
    let asked: Vec<(&RemotePlace, std::io::Result<Child>)> =
        places.iter().map(|place| (place, ask(place, global, args))).collect();
    let (mut answers, mut exit) = (Vec::new(), exit_codes::SUCCESS);
    for (place, child) in asked {
        match child.and_then(Child::wait_with_output) {
            Ok(out) if out.status.success() => answers.push((place.to_string(), out.stdout)),
            // It has said why on standard error.
            _ => exit = exit_codes::FAILURE,
        }
    }
    print(&answers, global, args)?;
    Ok(exit)
}

/// Starts the `ps` of one place.
fn ask(place: &RemotePlace, global: &Global, args: &PsArgs) -> std::io::Result<Child> {
    let mut command = Command::new(surroundings::program());
    command.args(["--host", &place.to_string()]);
    if let Some(root) = &global.root {
        command.arg("--root").arg(root);
    }
    if let Some(file) = &global.token_file {
        command.arg("--token-file").arg(file);
    }
    command.arg("ps").args(args.selection());
    match (args.json, global.quiet) {
        (true, _) => command.arg("--json"),
        (false, true) => command.arg("-q"),
        (false, false) => command.args(["--format", COLUMNS]),
    };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
}

fn print(answers: &[(String, Vec<u8>)], global: &Global, args: &PsArgs) -> Result<(), Failure> {
    if args.json {
        let mut rows: Vec<Value> = Vec::new();
        for (host, text) in answers {
            let listed: Vec<Value> = serde_json::from_slice(text).unwrap_or_default();
            rows.extend(listed.into_iter().map(|mut row| {
                if let Some(row) = row.as_object_mut() {
                    row.insert("host".to_owned(), host.clone().into());
                }
                row
            }));
        }
        return Ok(output::json(&rows)?);
    }
    if global.quiet {
        let ids: Vec<u8> = answers.iter().flat_map(|(_, text)| text.clone()).collect();
        return Ok(output::data(&ids)?);
    }
    let mut rows = vec![TITLES.map(str::to_owned).to_vec()];
    for (host, text) in answers {
        let text = String::from_utf8_lossy(text).into_owned();
        let row =
            |line: &str| std::iter::once(host.clone()).chain(line.split('\t').map(str::to_owned)).collect();
        rows.extend(text.lines().map(row));
    }
    Ok(output::data(table::aligned(&rows).as_bytes())?)
}
