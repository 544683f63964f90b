//! `penfold status`.

use std::fmt::Write as _;

use clap::Args;
use penfold_control::{Resolver, SandboxRef, View};
use penfold_state::log::{Entry, From, Reader};
use penfold_state::state::Status;
use penfold_state::time::now_ms;

use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::find;
use crate::text::process_tree::{self, Style};
use crate::text::row::Row;
use crate::text::{template, time};
use crate::{output, value};

/// The verb `status`.
pub(crate) const VERB: Verb = Verb {
    name: "status",
    aliases: &[],
    about: "Explain how sandboxes are",
    description: "Explains to people in which state a sandbox is, why and since when; shows its processes and the \
        last lines of its log.",
    examples: &[
        ("penfold status web", "how is it, and what did it say last?"),
        ("penfold status web -n 50", "with more of its log"),
    ],
    usage_failure: FailureKind::Usage,
    define: StatusArgs::augment_args,
    call: |global, matches| status(global, &usage::read(&VERB, matches)?),
};

/// What `penfold status` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct StatusArgs {
    /// Ids, unique beginnings of ids, or names; `-` reads them from standard input.
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
    /// How many lines of the log to show.
    #[arg(short = 'n', long, value_name = "N", value_parser = value::number, default_value_t = 10)]
    pub(crate) lines: u64,
    /// Print the state as JSON, as `penfold ps --json` does.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How much of the log is shown at most.
const MOST_LOG: usize = 64 * 1024;

/// Explains how sandboxes are.
pub(crate) fn status(global: &Global, args: &StatusArgs) -> Result<u8, Failure> {
    let resolver = find::resolver(global);
    let chosen = find::choose(global, &resolver, &args.ids)?;
    if args.json {
        let rows: Vec<Row<'_>> = chosen.found.iter().map(|(_, seen)| Row::of(seen)).collect();
        output::json(&rows)?;
        return Ok(chosen.exit);
    }
    let pages: Result<Vec<String>, Failure> =
        chosen.found.iter().map(|(known, seen)| page(&resolver, known, seen, args.lines)).collect();
    output::data(pages?.join("\n").as_bytes())?;
    Ok(chosen.exit)
}

fn page(resolver: &Resolver, known: &SandboxRef, seen: &View, log_lines: u64) -> Result<String, Failure> {
    let now = now_ms();
    let mut text = String::new();
    let mut line = |what: &str, words: &str| {
        let _ = writeln!(text, "{what:<10}{}", template::printable(words));
    };
    line("sandbox", &format!("{}  {}", seen.id, template::name(seen)));
    line("status", &template::status(seen, now));
    line("", meaning(seen.status));
    line("command", &template::command(seen));
    if !seen.labels.is_empty() {
        line("labels", &template::labels(seen));
    }
    if let Some(at) = seen.started_at_ms {
        line("started", &format!("{} ago, {}", template::ago(at, now), time::utc(at)));
    }
    if let Some(at) = seen.ended_at_ms {
        line("ended", &format!("{} ago, {}", template::ago(at, now), time::utc(at)));
    }
    if let Some(at) = seen.expires_at_ms {
        line("lease", &format!("ends in {}, {}", template::ago(now, at), time::utc(at)));
    }
    if let Some(level) = seen.level {
        let place = seen.leaf.as_ref().map_or_else(String::new, |leaf| format!("  {}", leaf.display()));
        line("level", &format!("{level}{place}"));
    }
    for (what, sentences) in
        [("because", &seen.evidence), ("damaged", &seen.damage), ("missing", &seen.missing)]
    {
        for sentence in sentences {
            line(what, sentence);
        }
    }
    let style = Style { pids: true, full: false };
    let members = find::members(resolver, known, seen, style.full)?;
    if !members.is_empty() {
        text.push_str("processes\n");
        text.extend(process_tree::draw(seen, &members, style).lines().map(|line| format!("  {line}\n")));
    }
    text.push_str(&log(known, log_lines));
    Ok(text)
}

/// What a word means, and what can be done.
fn meaning(status: Status) -> &'static str {
    match status {
        Status::Created => "its command does not run yet",
        Status::Running => "its command runs and somebody looks after it",
        Status::Stopping => "it is being ended",
        Status::Unkillable => "something in it does not die; its supervisor tries again",
        Status::Exited => "its command ended by itself, and nothing of it is left",
        Status::Failed => "its command could not be run, and nothing of it is left",
        Status::Killed => "it was ended, and nothing of it is left",
        Status::Orphaned => "nobody looks after it and something of it is alive: `penfold kill` ends it",
        Status::Lost => "nobody saw it end, and nothing of it was found",
    }
}

/// The last lines of the log; nothing when there is none.
fn log(known: &SandboxRef, wanted: u64) -> String {
    let Some(files) = known.record.as_ref().filter(|_| wanted > 0) else { return String::new() };
    let from = From::Last { lines: wanted, of: None };
    let Ok(mut reader) = Reader::open(files.dir(), from) else { return String::new() };
    let mut bytes = Vec::new();
    while let Ok(Some(entry)) = reader.next_entry() {
        if let Entry::Data { bytes: some, .. } = entry {
            bytes.extend_from_slice(some);
        }
        // A line without an end, or a writer that is faster than this.
        if bytes.len() > MOST_LOG {
            break;
        }
    }
    bytes.truncate(MOST_LOG);
    if bytes.is_empty() {
        return String::new();
    }
    let mut text = String::from("log\n");
    for line in String::from_utf8_lossy(&bytes).lines() {
        let _ = writeln!(text, "  {}", template::printable(line));
    }
    text
}
