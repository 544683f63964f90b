//! `penfold ps`.

use std::io::IsTerminal;

use clap::Args;
use penfold_control::View;
use penfold_state::time::now_ms;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::args::ids::Filters;
use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::exit_codes;
use crate::failure::{Failure, FailureKind};
use crate::output::{self, WriteError};
use crate::sandboxes::find::{self, Among};
use crate::text::row::Row;
use crate::text::template::{self, Format};

/// The verb `ps`.
pub(crate) const VERB: Verb = Verb {
    name: "ps",
    aliases: &["ls"],
    about: "List sandboxes",
    description: "Lists the sandboxes in which something may be alive; with -a those that have ended, too. A sandbox \
        that nobody looks after is `orphaned` while anything of it is alive, and `lost` when nothing of it was found \
        and nobody saw it end. One that was stopped is `stopped` where its command did not have to be killed, and found by \
        `status=killed`, too. -q prints ids only.",
    examples: &[
        ("penfold ps", "what runs here?"),
        ("penfold ps -a --filter label=job=17", "all of one job, those that have ended too"),
        ("penfold ps --format {{.ID}}:{{.Status}}", "two fields, a line each"),
        ("penfold ps -q --filter status=orphaned", "ids for another command"),
    ],
    usage_failure: FailureKind::Usage,
    define: PsArgs::augment_args,
    call: |global, matches| ps(global, &usage::read(&VERB, matches)?),
};

/// What `penfold ps` was asked to do.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "flags are")]
pub(crate) struct PsArgs {
    /// List those that have ended, too.
    #[arg(short, long)]
    pub(crate) all: bool,
    /// List only the one that was started last, whether it has ended or not.
    #[arg(short, long)]
    pub(crate) latest: bool,
    #[command(flatten)]
    pub(crate) filters: Filters,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print each as this says: `json`, or text with fields such as `{{.ID}}`; `table` before it adds headings.
    #[arg(long, value_name = "FORMAT", value_parser = template::format, conflicts_with = "json")]
    pub(crate) format: Option<Format>,
    /// Cut nothing short.
    #[arg(long)]
    pub(crate) no_trunc: bool,
    /// List again each second until interrupted.
    #[arg(long)]
    pub(crate) watch: bool,
}

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
        output::data(text.as_bytes())?;
        if !args.watch || !another() {
            return Ok(exit_codes::SUCCESS);
        }
    }
}

fn found(global: &Global, args: &PsArgs) -> Result<Vec<View>, Failure> {
    let among =
        if args.all || args.latest || args.filters.wants_ended() { Among::Every } else { Among::Living };
    let mut views: Vec<View> = find::list(&find::resolver(global), among)?
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
fn json(views: &[View]) -> Result<String, WriteError> {
    let rows: Result<Vec<String>, _> =
        views.iter().map(|view| serde_json::to_string(&Row::of(view))).collect();
    Ok(format!("[{}]\n", rows.map_err(WriteError::Json)?.join(",\n")))
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
