//! `penfold stats`.

use std::fmt::Write as _;
use std::io::IsTerminal as _;

use clap::Args;
use penfold_control::usage::words;
use penfold_control::{Resolver, SandboxRef, SandboxView};
use penfold_state::time::{format_rfc3339, now_ms};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;

use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::exit_codes;
use crate::failure::{Failure, FailureKind};
use crate::output::{self, WriteError};
use crate::sandboxes::find::{self, Among};
use crate::sandboxes::here::Here;
use crate::sandboxes::sampler::Sampler;
use crate::text::row::Numbers;
use crate::text::{summary, table, template, usage as columns};

/// The verb `stats`.
pub(crate) const VERB: Verb = Verb {
    name: "stats",
    aliases: &[],
    about: "Show the CPU time, the memory and the processes of sandboxes",
    description: "Shows what sandboxes use, each second until interrupted. CPU is in percent of one CPU. Without an ID it shows \
        all sandboxes with live members; with IDs it ends when all of them have ended. The numbers are those of the cgroup \
        where the kernel counts them, else sums over the processes: in JSON, `cpu_source` and `memory_source` say `cgroup` or \
        `processes`. Memory that processes share counts for each process in a sum.",
    examples: &[
        ("penfold stats", "show all sandboxes, each second"),
        ("penfold stats --no-stream web", "show one sandbox once"),
        ("penfold stats --json web", "print one JSON object per second"),
    ],
    usage_failure: FailureKind::Usage,
    define: StatsArgs::augment_args,
    places: Places::Hosts,
    call: |global, matches| stats(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold stats`.
#[derive(Args, Clone, Debug)]
pub(crate) struct StatsArgs {
    /// Ids, unique prefixes of ids, or names [default: all sandboxes with live members].
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<String>,
    /// Print once: the use of CPU during 200 ms.
    #[arg(long)]
    pub(crate) no_stream: bool,
    /// Print one JSON object per line and sandbox.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The time between two samples.
const PAUSE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A sandbox at one moment, as `--json` prints it.
#[derive(Serialize)]
struct Sample<'a> {
    schema: u32,
    /// RFC 3339.
    time: String,
    id: &'a str,
    name: Option<&'a str>,
    status: penfold_state::state::Status,
    /// `None` if the sandbox has ended.
    usage: Option<Numbers>,
}

/// Shows what sandboxes use.
pub(crate) fn stats(global: &Global, args: &StatsArgs) -> Result<u8, Failure> {
    let mut sampler = Sampler::new()?;
    // An id, not a name: another sandbox may take a name later.
    let mut ids: Option<Vec<String>> = None;
    let mut exit = exit_codes::SUCCESS;
    loop {
        let resolver = find::resolver(global);
        let found = match &ids {
            Some(ids) => present(&resolver, ids),
            None if args.ids.is_empty() => {
                let mut found = find::list(&resolver, Among::Living)?;
                // The newest first, as `ps` does.
                found.reverse();
                found
            }
            None => {
                let chosen = find::choose(global, &Here::new(global), &args.ids)?;
                exit = chosen.exit;
                ids = Some(chosen.found.iter().map(|(known, _)| known.id.clone()).collect());
                chosen.found
            }
        };
        if ids.is_some() && found.is_empty() {
            return Ok(exit);
        }
        let numbers = sampler.look_twice(&resolver, &found);
        let rows: Vec<(&SandboxView, Option<&Numbers>)> =
            found.iter().map(|(known, seen)| (seen, numbers.get(&known.id))).collect();
        let text = if args.json { samples(&rows)? } else { page(&rows, args) };
        output::data(text.as_bytes())?;
        let are_over = ids.is_some() && found.iter().all(|(_, seen)| !seen.status.is_living());
        if args.no_stream || are_over || !another() {
            return Ok(exit);
        }
    }
}

/// The sandboxes of these ids that are still known.
fn present(resolver: &Resolver, ids: &[String]) -> Vec<(SandboxRef, SandboxView)> {
    let look = |id: &String| {
        let known = resolver.resolve(id).ok()?;
        let seen = penfold_control::view::observe_sandbox(resolver, &known)?;
        Some((known, seen))
    };
    ids.iter().filter_map(look).collect()
}

fn samples(rows: &[(&SandboxView, Option<&Numbers>)]) -> Result<String, WriteError> {
    let time = format_rfc3339(now_ms().saturating_mul(1_000_000));
    let mut text = String::new();
    for (seen, numbers) in rows {
        let sample = Sample {
            schema: penfold_state::record::SCHEMA,
            time: time.clone(),
            id: &seen.id,
            name: seen.name.as_deref(),
            status: seen.status,
            usage: numbers.copied(),
        };
        text.push_str(&serde_json::to_string(&sample).map_err(WriteError::Json)?);
        text.push('\n');
    }
    Ok(text)
}

/// A table; on a terminal it takes the place of the last one.
fn page(rows: &[(&SandboxView, Option<&Numbers>)], args: &StatsArgs) -> String {
    let text = table(rows);
    let stdout = std::io::stdout();
    if args.no_stream || !stdout.is_terminal() {
        return text;
    }
    let size = rustix::termios::tcgetwinsize(&stdout).ok().filter(|size| size.ws_col > 0 && size.ws_row > 1);
    let (width, height) =
        size.map_or((usize::MAX, usize::MAX), |size| (usize::from(size.ws_col), usize::from(size.ws_row)));
    let mut page = "\u{1b}[H".to_owned();
    // The last line of the terminal stays free: a line feed there would move all others.
    for line in text.lines().take(height - 1) {
        let line: String = line.chars().take(width).collect();
        let _ = write!(page, "{line}\u{1b}[K\r\n");
    }
    page.push_str("\u{1b}[J");
    page
}

fn table(rows: &[(&SandboxView, Option<&Numbers>)]) -> String {
    let mut heading = ["ID", "NAME", "STATUS"].map(str::to_owned).to_vec();
    heading.extend(columns::HEADINGS.map(str::to_owned));
    heading.extend(["LIMIT", "CPU TIME"].map(str::to_owned));
    let mut lines = vec![heading];
    for (seen, numbers) in rows {
        let mut line = vec![
            seen.id.clone(),
            template::printable(&template::name(seen)),
            template::status(seen, now_ms()),
        ];
        line.extend(columns::cells(*numbers));
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        line.push(or_dash(seen.limits.memory_bytes.map(words::format_size)));
        let cpu = numbers.map(|numbers| std::time::Duration::from_micros(numbers.usage.cpu_us));
        line.push(or_dash(cpu.map(summary::human)));
        lines.push(line);
    }
    table::aligned(&lines)
}

/// Waits until the next sample is due; false if the reader of standard output is gone.
fn another() -> bool {
    let stdout = std::io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    matches!(rustix::event::poll(&mut fds, Some(&PAUSE)), Ok(0))
}
