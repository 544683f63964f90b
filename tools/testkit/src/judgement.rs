//! The verb `judge`: runs the library's judge and prints.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::Tool;
use crate::catalog::{Entry, TREES, find};
use crate::judge::{Ending, Line, Rules, Verdict};

/// The tool, the trees and the ending.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags that have nothing to do with each other")]
pub(crate) struct Options {
    /// Only this tree; may be repeated
    #[arg(long)]
    tree: Vec<String>,
    /// Build large trees in their full size
    #[arg(long)]
    full_size: bool,
    /// The event that ends each run: leader-exit, stop, interrupt, timeout, owner-killed, supervisor-killed,
    /// tool-killed, chain-killed
    #[arg(long, default_value = "leader-exit")]
    end: Ending,
    /// Seconds until survivors count as a leak
    #[arg(long, default_value_t = 5.0)]
    wait: f64,
    /// Seconds that the tool may take to end after the ending
    #[arg(long, default_value_t = 5.0)]
    tool_wait: f64,
    /// Run the tool as this user and group id
    #[arg(long)]
    user: Option<u32>,
    /// Start the tool in this cgroup, a directory
    #[arg(long)]
    cgroup: Option<PathBuf>,
    /// Command to run between the ending and the verdict, with spaces between its words
    #[arg(long)]
    after: Option<String>,
    /// Compare cgroups, mounts, links, sockets and penfold's directories too; nothing else may run meanwhile
    #[arg(long)]
    host: bool,
    /// Print one JSON object for each line
    #[arg(long)]
    json: bool,
    /// Name the survivors
    #[arg(short, long)]
    verbose: bool,
    /// The tool and its arguments; `{cmd}` stands for the tree's command
    #[arg(last = true, required = true)]
    tool: Vec<OsString>,
}

/// Prints a line for each tree and a summary. Exits with 1 if something was left, or a bystander was hit.
pub(crate) fn judge(options: Options) -> ExitCode {
    let trees: Vec<&'static Entry> = if options.tree.is_empty() {
        TREES.iter().collect()
    } else {
        let found: Option<Vec<_>> = options.tree.iter().map(|name| find(name)).collect();
        let Some(found) = found else {
            drop(writeln!(io::stderr(), "testkit: a tree of this name does not exist; see `testkit list`"));
            return ExitCode::from(2);
        };
        found
    };
    let rules = Rules {
        ending: options.end,
        patience: Duration::try_from_secs_f64(options.wait).unwrap_or(Duration::from_secs(5)),
        tool_patience: Duration::try_from_secs_f64(options.tool_wait).unwrap_or(Duration::from_secs(5)),
        after: options
            .after
            .iter()
            .flat_map(|text| text.split_ascii_whitespace())
            .map(OsString::from)
            .collect(),
        host: options.host,
    };
    let mut tool = Tool::new(options.tool);
    if let Some(user) = options.user {
        tool = tool.user(user);
    }
    if let Some(cgroup) = options.cgroup {
        tool = tool.cgroup(cgroup);
    }
    let mut count = Count::default();
    for tree in trees {
        let number = tree.full_size.filter(|_| options.full_size).map(|number| number.to_string());
        let sized = number.map(|number| tool.clone().tree_options(["-n", &number]));
        let line = crate::judge::judge(sized.as_ref().unwrap_or(&tool), tree, &rules);
        count.add(&line);
        let text = if options.json {
            serde_json::to_string(&line).unwrap_or_default()
        } else {
            plain(&line, options.verbose)
        };
        if writeln!(io::stdout(), "{text}").is_err() {
            return ExitCode::FAILURE;
        }
    }
    // With --json the summary must not look like one of the objects.
    let told =
        if options.json { writeln!(io::stderr(), "{count}") } else { writeln!(io::stdout(), "{count}") };
    drop(told);
    if count.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(Debug, Default)]
struct Count {
    ended: u32,
    judged: u32,
    skipped: u32,
    broken: u32,
    hit: u32,
    left: u32,
}

impl Count {
    fn add(&mut self, line: &Line) {
        match line.verdict {
            Verdict::Skipped { .. } => self.skipped += 1,
            Verdict::Broken { .. } => self.broken += 1,
            Verdict::Ok | Verdict::Leak { .. } => self.judged += 1,
        }
        self.ended += u32::from(matches!(line.verdict, Verdict::Ok));
        self.hit += u32::from(line.bystander_hit);
        self.left += u32::from(!line.left.is_empty());
    }

    fn is_clean(&self) -> bool {
        self.ended == self.judged && self.broken == 0 && self.hit == 0 && self.left == 0
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} trees ended, {} bystanders hit", self.ended, self.judged, self.hit)?;
        if self.left > 0 {
            write!(f, ", {} left other things", self.left)?;
        }
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        if self.broken > 0 {
            write!(f, ", {} could not be judged", self.broken)?;
        }
        Ok(())
    }
}

fn plain(line: &Line, verbose: bool) -> String {
    let first = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    let mut text = match &line.verdict {
        Verdict::Ok => format!("{:24} ok in {} ms", line.tree, line.milliseconds),
        Verdict::Skipped { reason } => format!("{:24} skipped: {}", line.tree, first(reason)),
        Verdict::Broken { reason } => format!("{:24} not judged: {}", line.tree, first(reason)),
        Verdict::Leak { survivors } => format!("{:24} LEAK {} processes", line.tree, survivors.len()),
    };
    if line.bystander_hit {
        text.push_str(", a bystander was hit");
    }
    let mut details: Vec<String> = line.left.iter().map(ToString::to_string).collect();
    if verbose && let Verdict::Leak { survivors } = &line.verdict {
        details.extend(survivors.iter().take(10).map(ToString::to_string));
    }
    for detail in details {
        text.push_str("\n    ");
        text.push_str(&detail);
    }
    text
}
