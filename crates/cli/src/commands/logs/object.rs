//! A line of a log as JSON.

use std::io;

use penfold_state::log::Stream;
use penfold_state::time::format_rfc3339;
use serde::Serialize;

/// A line of a log as JSON.
#[derive(Serialize)]
struct Object<'a> {
    schema: u32,
    #[serde(flatten)]
    of: Option<Of<'a>>,
    time: &'a str,
    stream: &'a str,
    offset: u64,
    text: &'a str,
}

/// The sandbox of a line, where lines of several are mixed.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Of<'a> {
    pub(super) sandbox: &'a str,
    pub(super) name: Option<&'a str>,
}

/// A line, or the part of one, as the log has it.
#[derive(Clone, Copy)]
pub(super) struct Text<'a> {
    pub(super) stream: Stream,
    /// The time of the first byte, in nanoseconds since 1970.
    pub(super) time: u64,
    /// The place of the first byte in the log.
    pub(super) offset: u64,
    pub(super) bytes: &'a [u8],
}

/// Adds a line to a buffer; bytes that are not UTF-8 are replaced.
pub(super) fn write(to: &mut Vec<u8>, of: Option<Of<'_>>, line: Text<'_>) -> io::Result<()> {
    let object = Object {
        schema: 1,
        of,
        time: &format_rfc3339(line.time),
        stream: if line.stream == Stream::Stdout { "stdout" } else { "stderr" },
        offset: line.offset,
        text: &String::from_utf8_lossy(line.bytes),
    };
    serde_json::to_writer(&mut *to, &object)?;
    to.push(b'\n');
    Ok(())
}
