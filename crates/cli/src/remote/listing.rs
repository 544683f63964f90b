//! `ps` and `inspect` of a server.

use penfold_client::{Client, encoded};
use penfold_control::View;
use penfold_state::time::now_ms;
use serde_json::Value;

use super::{failure, select};
use crate::args::verb::Global;
use crate::commands::inspect::{self, Contents, InspectArgs, Inspected};
use crate::commands::ps::{self, PsArgs};
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::find;
use crate::text::row::Row;
use crate::text::template::Format;
use crate::{exit_codes, output};

/// Lists sandboxes.
pub(super) fn ps(client: &Client, global: &Global, args: &PsArgs) -> Result<u8, Failure> {
    let &PsArgs {
        all_users,
        containers,
        stats,
        ports,
        // These select among what the server lists, and show it.
        all: _,
        latest: _,
        last: _,
        filters: _,
        json: _,
        format: _,
        no_trunc: _,
        watch: _,
    } = args;
    for (is_given, flag) in
        [(all_users, "--all-users"), (containers, "--containers"), (stats, "--stats"), (ports, "--ports")]
    {
        if is_given {
            let sentence = format!("`penfold ps {flag}` works on this host only, not on a server");
            return Err(Failure::new(FailureKind::Usage, sentence));
        }
    }
    ps::list(global, args, |among| Ok(select::list(client, among)?.into_iter().map(Into::into).collect()))
}

/// Prints the views of sandboxes, with their reports. The server sends no other file of a record.
pub(super) fn inspect(client: &Client, global: &Global, args: &InspectArgs) -> Result<u8, Failure> {
    // JSON is the default.
    let InspectArgs { ids, json: _, format } = args;
    let mut exit = exit_codes::SUCCESS;
    let mut found: Vec<View> = Vec::new();
    for word in find::read_words(ids)? {
        match select::find(client, &word) {
            Ok(view) if found.iter().any(|other| other.id == view.id) => {}
            Ok(view) => found.push(view),
            Err(failure) => {
                let code = failure.report(global.color.wanted(&std::io::stderr()));
                exit = if exit == exit_codes::SUCCESS { code } else { exit };
            }
        }
    }
    if let Some(Format::Lines(template) | Format::Table(template)) = format {
        let text: String = found.iter().map(|view| template.line(view, now_ms())).collect();
        output::data(text.as_bytes())?;
        return Ok(exit);
    }
    let mut inspected = Vec::new();
    for view in &found {
        let report = match client.get::<Value>(&format!("/v1/sandboxes/{}/report", encoded(&view.id))) {
            Err(error) if error.problem().is_none() => return Err(failure(error)),
            report => report.unwrap_or_default(),
        };
        let files = Contents { intent: None, state: Value::Null, exit: Value::Null, report };
        inspected.push(Inspected { row: Row::of(view), files });
    }
    inspect::print(&inspected, format.as_ref())?;
    Ok(exit)
}
