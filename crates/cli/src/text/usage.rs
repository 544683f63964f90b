//! What a sandbox uses, in columns and in a line.

use std::time::Duration;

use penfold_control::usage::words;
use penfold_teardown::Findings;

use crate::text::lines::count;
use crate::text::row::Numbers;
use crate::text::summary::human;

/// The headings of [`cells`].
pub(crate) const HEADINGS: [&str; 3] = ["CPU", "MEM", "PROCS"];

/// The columns of a table; dashes for a sandbox that has ended.
pub(crate) fn cells(numbers: Option<&Numbers>) -> [String; 3] {
    let Some(Numbers { usage, cpu_percent }) = numbers else { return ["-", "-", "-"].map(str::to_owned) };
    [words::format_percent(*cpu_percent), words::format_size(usage.memory_bytes), usage.processes.to_string()]
}

/// `1.2s CPU, 64M memory, 3 processes`.
pub(crate) fn line(numbers: &Numbers) -> String {
    let usage = &numbers.usage;
    let cpu = human(Duration::from_micros(usage.cpu_us));
    let processes = count(usage.processes, "process", "processes");
    format!("{cpu} CPU, {} memory, {processes}", words::format_size(usage.memory_bytes))
}

/// `1.2s CPU, 64M memory at most`: what the members of a sandbox that has ended have used.
pub(crate) fn ended(findings: &Findings) -> String {
    let cpu = human(Duration::from_micros(findings.cpu_us));
    format!("{cpu} CPU, {} memory at most", words::format_size(findings.peak_memory_bytes))
}
