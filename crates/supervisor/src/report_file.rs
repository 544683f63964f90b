//! The file that a report is written to when somebody wants one.

use std::io::{Seek, Write};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::outcome::Report;
use crate::poll::poll;

/// How long a reader of the report may keep us waiting.
const READER: Duration = Duration::from_secs(2);

/// As much as a pipe that is ready takes without waiting: pipe(7).
const PIPE_BUF: usize = 4096;

/// Replaces the content of the report file, or adds to that of one that is shared. A pipe or terminal is written to as it is,
/// as far as somebody reads it.
///
/// # Errors
/// Those of write(2); `TimedOut` where nobody reads.
pub(crate) fn write(mut file: &std::fs::File, shared: bool, report: &Report) -> std::io::Result<()> {
    let mut text = serde_json::to_vec_pretty(report)?;
    text.push(b'\n');
    if file.metadata()?.is_file() {
        if !shared {
            file.set_len(0)?;
            file.rewind()?;
        }
        return file.write_all(&text);
    }
    let begun = Instant::now();
    let mut rest = text.as_slice();
    while !rest.is_empty() {
        let left = Timespec::try_from(READER.saturating_sub(begun.elapsed())).ok();
        let mut fds = [PollFd::new(file, PollFlags::OUT)];
        if rustix::io::retry_on_intr(|| poll(&mut fds, left.as_ref()))? == 0 {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        let written = file.write(rest.get(..rest.len().min(PIPE_BUF)).unwrap_or_default())?;
        rest = rest.get(written..).unwrap_or_default();
    }
    Ok(())
}
