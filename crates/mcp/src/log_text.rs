//! Parts of a log as text.

use penfold_state::log::{LogEntry, LogError, LogPosition, LogReader, Stream};
use penfold_state::{Files, error_chain};

use crate::answer::ToolError;
use crate::plain::{Bounded, plain_text, whole_characters};

/// The most bytes of output in an answer.
pub(crate) const MOST: usize = 32 << 10;

/// A part of a log.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) text: String,
    /// The offset at which the next part begins.
    pub(crate) next_offset: u64,
    /// Whether there is more output already.
    pub(crate) more: bool,
    /// The bytes between the wanted start and the text that are left out of the answer.
    pub(crate) cut: u64,
    /// The bytes that the log has lost by then: overwritten, damaged, or not written to a full disk.
    pub(crate) lost: u64,
}

/// Opens the log of a sandbox.
///
/// # Errors
/// When it cannot be read, or the sandbox has none.
pub(crate) fn open_log(files: &Files, from: LogPosition) -> Result<LogReader, ToolError> {
    LogReader::open(files.dir(), from).map_err(|error| match error {
        LogError::Missing => ToolError::new(format!(
            "sandbox {} has no log: it runs in the foreground of a terminal",
            files.name()
        )),
        error => unreadable_log(&error),
    })
}

/// The error of a log that cannot be read.
pub(crate) fn unreadable_log(error: &LogError) -> ToolError {
    ToolError::new(error_chain(error))
}

/// Reads the last lines.
///
/// # Errors
/// As [`open_log`].
pub(crate) fn read_tail(files: &Files, lines: u64, of: Option<Stream>) -> Result<Part, ToolError> {
    let mut reader = open_log(files, LogPosition::Last { lines, of })?;
    let mut kept = Bounded::end(MOST);
    let mut lost = 0;
    while let Some(entry) = reader.next_entry().map_err(|error| unreadable_log(&error))? {
        match entry {
            LogEntry::Data { stream, bytes, .. } if of.is_none_or(|of| of == stream) => kept.push(bytes),
            entry => lost += missing_bytes(&entry),
        }
    }
    Ok(Part { text: kept.text(), next_offset: reader.offset(), more: false, cut: kept.cut(), lost })
}

/// Reads on from a place, at most `most` bytes.
///
/// # Errors
/// As [`open_log`].
pub(crate) fn read_from(
    files: &Files,
    from: LogPosition,
    of: Option<Stream>,
    most: usize,
) -> Result<Part, ToolError> {
    let mut reader = open_log(files, from)?;
    let mut kept: Vec<u8> = Vec::new();
    let mut lost = 0;
    while let Some(entry) = reader.next_entry().map_err(|error| unreadable_log(&error))? {
        match entry {
            LogEntry::Data { stream, offset, bytes, .. } if of.is_none_or(|of| of == stream) => {
                let room = most - kept.len();
                let piece = bytes.get(..room).unwrap_or(bytes);
                let whole = if piece.len() < bytes.len() { whole_characters(piece) } else { piece.len() };
                kept.extend_from_slice(piece.get(..whole).unwrap_or_default());
                if piece.len() < bytes.len() {
                    let next_offset = offset + u64::try_from(whole).unwrap_or(0);
                    return Ok(Part { text: plain_text(&kept), next_offset, more: true, cut: 0, lost });
                }
            }
            entry => lost += missing_bytes(&entry),
        }
    }
    Ok(Part { text: plain_text(&kept), next_offset: reader.offset(), more: false, cut: 0, lost })
}

/// The bytes that are missing at an entry.
pub(crate) fn missing_bytes(entry: &LogEntry<'_>) -> u64 {
    match entry {
        LogEntry::Data { .. } => 0,
        LogEntry::Lost { bytes, .. } | LogEntry::Missed { bytes } | LogEntry::Damaged { bytes, .. } => *bytes,
    }
}
