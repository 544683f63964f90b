//! The conditions of a measurement.

use std::process::Command;
use std::time::Duration;

use crate::{Args, Name, tools, wait};

/// With a larger share of busy CPUs, in percent, a measurement is called noisy.
const QUIET: u64 = 10;

/// The share of busy CPUs between measurements, in percent; `None` if the host does not tell.
pub(crate) fn noise(window: Duration) -> Option<u64> {
    let before = ticks()?;
    wait::pass(window);
    let after = ticks()?;
    let (busy, all) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    (busy * 100).checked_div(all)
}

/// The busy ticks and all ticks of all CPUs since boot: the first line of `proc_stat(5)`.
fn ticks() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let numbers: Vec<u64> = line.split_whitespace().take(8).filter_map(|word| word.parse().ok()).collect();
    let all: u64 = numbers.iter().sum();
    // idle and iowait
    let idle: u64 = numbers.iter().skip(3).take(2).sum();
    Some((all - idle, all))
}

/// One paragraph: date, machine, load by other programs, and the command that repeats the measurement.
pub(crate) fn conditions(args: &Args, name: Name, noise: Option<u64>) -> String {
    let date = first_line(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let source = match tools::given() {
        Some(_) => Some("binary from `PENFOLD_BIN`".to_owned()),
        None => first_line(Command::new("git").args(["describe", "--always", "--dirty", "--exclude", "*"]))
            .map(|commit| format!("commit {commit}")),
    };
    let noise = match noise {
        None => "unknown".to_owned(),
        Some(share) if share > QUIET => format!("{share} % busy: **noisy, take with care**"),
        Some(share) => format!("{share} % busy"),
    };
    let commit = source.map_or_else(String::new, |source| format!(", {source}"));
    let name = clap::ValueEnum::to_possible_value(&name)
        .map_or_else(String::new, |value| value.get_name().to_owned());
    let rounds = if args.quick { " --quick".to_owned() } else { format!(" --rounds {}", args.rounds) };
    format!(
        "{}, Linux {}, {cpus} CPUs ({}), other programs {noise}{commit}; repeat with `cargo bench-all {name}{rounds}`\n",
        date.unwrap_or_default(),
        kernel.trim(),
        model(),
    )
}

fn model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    line.map_or_else(|| "unknown".to_owned(), |line| line.trim_start_matches([' ', '\t', ':']).to_owned())
}

fn first_line(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(str::to_owned)
}
