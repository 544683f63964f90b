//! `penfold ps`: what it does.

use std::io::IsTerminal;

use penfold_control::View;
use penfold_state::time::now_ms;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::args::Global;
use crate::args::ps::PsArgs;
use crate::failure::Failure;
use crate::sandboxes::find::{self, Among};
use crate::text::row::Row;
use crate::text::template::{self, Format};
use crate::{exit_codes, output};

/// How long a command may be in a table on a terminal.
const COMMAND_WIDTH: usize = 40;

/// Lists sandboxes.
pub(crate) fn ps(global: &Global, args: &PsArgs) -> Result<u8, Failure> {
    loop {
        let views = found(global, args)?;
        let mut text = match &args.format {
            _ if global.quiet => views.iter().flat_map(|view| [view.id.as_str(), "\n"]).collect(),
            Some(Format::Json) => json(&views)?,
            None if args.json => json(&views)?,
            Some(Format::Lines(template)) => views.iter().map(|view| template.line(view, now_ms())).collect(),
            Some(Format::Table(template)) => template.table(&views, now_ms()),
            None => table(&views, args),
        };
        if args.watch && std::io::stdout().is_terminal() {
            text.insert_str(0, "\u{1b}[H\u{1b}[2J");
        }
        output::data(text.as_bytes(), exit_codes::FAILURE)?;
        if !args.watch || !another() {
            return Ok(exit_codes::SUCCESS);
        }
    }
}

fn found(global: &Global, args: &PsArgs) -> Result<Vec<View>, Failure> {
    let among =
        if args.all || args.latest || args.filters.wants_ended() { Among::Every } else { Among::Living };
    let mut views: Vec<View> = find::list(&find::finder(global), among)?
        .into_iter()
        .map(|(_, view)| view)
        .filter(|view| args.filters.match_all(view))
        .collect();
    // The youngest first, as people look for what they have just started.
    views.reverse();
    if args.latest {
        views.truncate(1);
    }
    Ok(views)
}

/// An array, one sandbox a line.
fn json(views: &[View]) -> Result<String, Failure> {
    let rows: Result<Vec<String>, _> =
        views.iter().map(|view| serde_json::to_string(&Row::of(view))).collect();
    let rows = rows.map_err(|error| {
        Failure::new(exit_codes::FAILURE, "cannot write the result as JSON").because(error)
    })?;
    Ok(format!("[{}]\n", rows.join(",\n")))
}

fn table(views: &[View], args: &PsArgs) -> String {
    let whole = args.no_trunc || !std::io::stdout().is_terminal();
    let heading = ["ID", "NAME", "STATUS", "STARTED", "COMMAND"].map(str::to_owned).to_vec();
    let now = now_ms();
    let rows = views.iter().map(|view| {
        let command = template::printable(&template::command(view));
        vec![
            view.id.clone(),
            template::printable(&template::name(view)),
            template::status(view, now),
            template::started(view, now),
            if whole { command } else { shortened(&command) },
        ]
    });
    template::aligned(&std::iter::once(heading).chain(rows).collect::<Vec<_>>())
}

fn shortened(command: &str) -> String {
    if command.chars().count() <= COMMAND_WIDTH {
        return command.to_owned();
    }
    let kept: String = command.chars().take(COMMAND_WIDTH - 1).collect();
    format!("{kept}…")
}

/// Waits for the next look; false when nobody reads any more.
fn another() -> bool {
    const PAUSE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
    let stdout = std::io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    matches!(rustix::event::poll(&mut fds, Some(&PAUSE)), Ok(0))
}
