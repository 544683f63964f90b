//! Output in answers: JSON strings that are written from a log, and never whole in memory.

use std::io::{self, Write};

use penfold_state::log::{LogEntry, LogReader, Stream};

use crate::json_body::JsonString;

/// Writes the output of one stream as a JSON string, and then a line of the server's, if there is one. Returns the number of
/// bytes that the log has lost.
///
/// # Errors
/// When the log cannot be read, or `out` not written.
pub(crate) fn write_string(
    out: &mut impl Write,
    log: &mut LogReader,
    of: Stream,
    line: &str,
) -> io::Result<u64> {
    let mut string = JsonString::default();
    let (mut lost, mut newest) = (0, b'\n');
    out.write_all(b"\"")?;
    while let Some(entry) = log.next_entry().map_err(io::Error::other)? {
        match entry {
            LogEntry::Data { stream, bytes, .. } if stream == of => {
                out.write_all(string.part(bytes).as_bytes())?;
                newest = bytes.last().copied().unwrap_or(newest);
            }
            LogEntry::Data { .. } => {}
            LogEntry::Lost { bytes, .. } | LogEntry::Missed { bytes } | LogEntry::Damaged { bytes, .. } => {
                lost += bytes;
            }
        }
    }
    if !line.is_empty() {
        let between = if newest == b'\n' { "" } else { "\n" };
        out.write_all(string.part(format!("{between}{line}\n").as_bytes()).as_bytes())?;
    }
    out.write_all(string.end().as_bytes())?;
    out.write_all(b"\"")?;
    Ok(lost)
}
