//! Writes the report file.

use std::io::{Seek, Write};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::outcome::Report;
use crate::poll::poll;

/// The time that a reader of the report may delay this process.
const READER_TIMEOUT: Duration = Duration::from_secs(2);

/// The size of a write that a ready pipe accepts without blocking, see pipe(7).
const PIPE_BUF: usize = 4096;

/// Replaces the content of the report file, or appends to a shared one. A pipe or terminal gets as much as its reader
/// reads.
///
/// # Errors
/// Those of write(2); `TimedOut` without a reader.
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
        let left = Timespec::try_from(READER_TIMEOUT.saturating_sub(begun.elapsed())).ok();
        let mut fds = [PollFd::new(file, PollFlags::OUT)];
        if rustix::io::retry_on_intr(|| poll(&mut fds, left.as_ref()))? == 0 {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        let written = file.write(rest.get(..rest.len().min(PIPE_BUF)).unwrap_or_default())?;
        rest = rest.get(written..).unwrap_or_default();
    }
    Ok(())
}
