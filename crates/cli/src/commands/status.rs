//! `penfold status`.

use std::fmt::Write as _;

use clap::Args;
use penfold_control::{Resolver, SandboxRef, SandboxView};
use penfold_process::Listeners;
use penfold_state::log::{LogEntry, LogPosition, LogReader};
use penfold_state::state::Status;
use penfold_state::survivors::LivingSurvivor;
use penfold_state::time::now_ms;

use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::find;
use crate::sandboxes::here::Here;
use crate::sandboxes::sampler::Sampler;
use crate::text::leak::reap_as_root;
use crate::text::process_tree::{self, Style};
use crate::text::row::{Numbers, Row, numbers};
use crate::text::{template, time, usage as columns};
use crate::{output, value};

/// The verb `status`.
pub(crate) const VERB: Verb = Verb {
    name: "status",
    aliases: &[],
    about: "Explain the status of sandboxes",
    description: "Explains the status of a sandbox and the evidence for it; shows what it uses or has used, its processes \
        and the last lines of its log.",
    examples: &[
        ("penfold status web", "show the status and the last lines of the log"),
        ("penfold status web -n 50", "show the last 50 lines of the log"),
    ],
    usage_failure: FailureKind::Usage,
    define: StatusArgs::augment_args,
    places: Places::Hosts,
    call: |global, matches| status(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold status`.
#[derive(Args, Clone, Debug)]
pub(crate) struct StatusArgs {
    /// Ids, unique prefixes of ids, or names; `-` reads them from standard input.
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
    /// The number of log lines to show.
    #[arg(short = 'n', long, value_name = "N", value_parser = value::number, default_value_t = 10)]
    pub(crate) lines: u64,
    /// Print the status as JSON, as `penfold ps --stats --json` does.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The maximum size of the shown part of the log.
const MOST_LOG: usize = 64 * 1024;

/// Explains the status of sandboxes.
pub(crate) fn status(global: &Global, args: &StatusArgs) -> Result<u8, Failure> {
    let here = Here::new(global);
    let chosen = find::choose(global, &here, &args.ids)?;
    let resolver = here.resolver;
    let numbers = Sampler::new()?.look(&resolver, &chosen.found);
    if args.json {
        let rows: Vec<Row<'_>> = chosen
            .found
            .iter()
            .map(|(_, seen)| Row { usage: numbers.get(&seen.id).copied(), ..Row::of(seen) })
            .collect();
        output::json(&rows)?;
        return Ok(chosen.exit);
    }
    let mut pages = Vec::new();
    for (known, seen) in &chosen.found {
        let used = used(known, seen.status, numbers.get(&known.id));
        pages.push(page(&resolver, (known, seen), used, args.lines)?);
    }
    output::data(pages.join("\n").as_bytes())?;
    Ok(chosen.exit)
}

/// What a sandbox uses now or, after its end, what its report says.
fn used(known: &SandboxRef, status: Status, numbers: Option<&Numbers>) -> Option<String> {
    let report = || known.record.as_ref()?.report().ok()?;
    numbers
        .filter(|_| status != Status::Waiting)
        .map(columns::line)
        .or_else(|| report().map(|report| columns::ended(&report.findings)))
}

fn page(
    resolver: &Resolver,
    (known, seen): (&SandboxRef, &SandboxView),
    used: Option<String>,
    log_lines: u64,
) -> Result<String, Failure> {
    let now = now_ms();
    let mut text = String::new();
    let mut line = |what: &str, words: &str| {
        let _ = writeln!(text, "{what:<10}{}", template::printable(words));
    };
    line("sandbox", &format!("{}  {}", seen.id, template::name(seen)));
    line("status", &template::status(seen, now));
    let survivors = resolver.survivors(&known.id);
    line(
        "",
        match seen.status {
            _ if seen.elsewhere => ELSEWHERE,
            Status::Orphaned if !survivors.is_empty() => UNENDED,
            Status::Orphaned if known.record.is_none() => UNRECORDED,
            status => meaning(status),
        },
    );
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
    if let Some(used) = used {
        line("used", &used);
    }
    let style = Style { pids: true, full: false };
    let members = find::members(resolver, known, seen, style.full)?;
    let ports = Listeners::default().of(&members.iter().map(|member| member.id.pid).collect::<Vec<_>>());
    if !ports.is_empty() {
        line("listens", &numbers(&ports));
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
    if survivors.iter().any(LivingSurvivor::is_refused) {
        line("try", &reap_as_root(survivors.iter().map(|alive| (alive.pid().as_raw_pid(), alive.id()))));
    }
    if !members.is_empty() {
        text.push_str("processes\n");
        text.extend(process_tree::draw(seen, &members, style).lines().map(|line| format!("  {line}\n")));
    }
    text.push_str(&log(known, log_lines));
    Ok(text)
}

/// The meaning of the status of a sandbox whose supervisor is in another mount namespace.
const ELSEWHERE: &str = "the command runs; its supervisor and its record are in another mount namespace";

/// The meaning of the status of a sandbox whose members could not be ended, without a record that has a supervisor.
const UNENDED: &str = "members could not be ended; `penfold kill` tries again";

/// The meaning of the status of a living sandbox whose record is lost: its supervisors may live.
const UNRECORDED: &str =
    "members live, and the record that leads to their supervisor is lost: `penfold kill` ends them";

/// The meaning of a status, with the command that helps.
fn meaning(status: Status) -> &'static str {
    match status {
        Status::Created => "the command does not run yet",
        Status::Running => "the command runs and has a supervisor",
        Status::Paused => "all members are frozen; `penfold unpause` continues them",
        Status::Waiting => "the command failed, and waits for its next start; all members are gone",
        Status::Stopping => "the sandbox is ending",
        Status::Unkillable => "members could not be ended; the supervisor tries again",
        Status::Exited => "the command exited by itself; all members are gone",
        Status::Failed => "the command did not start; all members are gone",
        Status::Killed => "penfold ended the sandbox; all members are gone",
        Status::Orphaned => "members live without a supervisor: `penfold kill` ends them",
        Status::Lost => "no supervisor saw the end; no members were found",
    }
}

/// The last lines of the log; empty if there is no log.
fn log(known: &SandboxRef, wanted: u64) -> String {
    let Some(files) = known.record.as_ref().filter(|_| wanted > 0) else { return String::new() };
    let from = LogPosition::Last { lines: wanted, of: None };
    let Ok(mut reader) = LogReader::open(files.dir(), from) else { return String::new() };
    let mut bytes = Vec::new();
    while let Ok(Some(entry)) = reader.next_entry() {
        if let LogEntry::Data { bytes: some, .. } = entry {
            bytes.extend_from_slice(some);
        }
        // Stop at the limit: a line may have no end, and a writer may be faster than this reader.
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
