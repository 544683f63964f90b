//! Writes the report file, and the lines of the status descriptor.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use penfold_process::StartTime;
use penfold_state::ReportFile;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::outcome::Report;
use crate::poll::poll_or_pause;

/// The time that a reader of the report may delay this process.
const READER_TIMEOUT: Duration = Duration::from_secs(2);

/// The size of a write that a ready pipe accepts without blocking, see pipe(7).
const PIPE_BUF: usize = 4096;

/// Writes the report to its file. A pipe or terminal gets as much as its reader reads.
///
/// # Errors
/// Those of [`ReportFile::write`]; `TimedOut` without a reader.
pub(crate) fn write_report(target: &ReportFile, report: &Report) -> std::io::Result<()> {
    let mut text = serde_json::to_vec_pretty(report)?;
    text.push(b'\n');
    if target.file.metadata()?.is_file() { target.write(&text) } else { send(&target.file, &text) }
}

/// A line of `--status-fd`.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(crate) enum StatusLine<'a> {
    /// The command executes its program.
    Running {
        /// The version of this format.
        schema: u32,
        /// The short id of the sandbox.
        id: String,
        /// The state root of the sandbox.
        #[serde(with = "penfold_process::path_text")]
        root: &'a Path,
        /// The pid of the command.
        pid: i32,
        /// The start time of that process, in ticks since boot.
        #[serde(skip_serializing_if = "Option::is_none")]
        start_time: Option<StartTime>,
    },
    /// The sandbox has ended, or the command could not be started.
    Ended {
        /// The version of this format.
        schema: u32,
        /// The report.
        report: &'a Report,
    },
}

/// Writes a line to the status descriptor.
///
/// # Errors
/// Those of write(2); `TimedOut` without a reader.
pub(crate) fn write_status(mut file: &std::fs::File, line: &StatusLine<'_>) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    if file.metadata()?.is_file() { file.write_all(&text) } else { send(file, &text) }
}

/// Writes to a pipe, socket or terminal as much as its reader reads.
fn send(mut file: &std::fs::File, text: &[u8]) -> std::io::Result<()> {
    let begun = Instant::now();
    let mut rest = text;
    while !rest.is_empty() {
        let left = Timespec::try_from(READER_TIMEOUT.saturating_sub(begun.elapsed())).ok();
        let mut fds = [PollFd::new(file, PollFlags::OUT)];
        if rustix::io::retry_on_intr(|| poll_or_pause(&mut fds, left.as_ref()))? == 0 {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        let written = file.write(rest.get(..rest.len().min(PIPE_BUF)).unwrap_or_default())?;
        rest = rest.get(written..).unwrap_or_default();
    }
    Ok(())
}
