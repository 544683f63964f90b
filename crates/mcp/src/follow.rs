//! Waits for what a sandbox prints, and for a port on which it listens.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use penfold_control::ports::ports_of;
use penfold_control::{Resolver, SandboxRef, view};
use penfold_process::Port;
use penfold_state::log::{LogEntry, LogReader, LogWaitEnd, Stream};

use crate::answer::ToolError;
use crate::call::Cancel;
use crate::find::sandbox_record;
use crate::log_text::unreadable_log;
use crate::plain::{Bounded, plain_text};

/// The least time between two looks at the ports.
const LOOK: Duration = Duration::from_millis(50);
/// The longest start of a line that is searched. Of a longer one, the end is.
const LONGEST_LINE: usize = 64 << 10;

/// What is waited for: all of it.
#[derive(Debug, Default)]
pub(crate) struct Goal {
    /// A line contains this text.
    pub(crate) text: Option<String>,
    /// A member listens on this port; 0 means any.
    pub(crate) port: Option<u16>,
    /// Only this stream is read.
    pub(crate) stream: Option<Stream>,
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Followed {
    /// All that was waited for has come.
    Reached,
    /// The sandbox has ended before.
    Ended,
    /// The time was over before.
    Late,
    /// The call was cancelled.
    Cancelled,
}

/// What a wait has read.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) why: Followed,
    pub(crate) output: Bounded,
    /// The offset after what was read.
    pub(crate) next_offset: u64,
}

/// Reads a log until the goal is reached. Nothing to wait for is never reached.
///
/// # Errors
/// When the log or /proc cannot be read.
pub(crate) fn follow_log(
    (root, known): (&Path, &SandboxRef),
    reader: &mut LogReader,
    goal: Goal,
    until: Instant,
    cancel: &Cancel,
) -> Result<Read, ToolError> {
    let files = sandbox_record(known)?;
    let mut search = goal.text.map(Search::new);
    let mut read = Read {
        why: Followed::Late,
        output: Bounded::end(crate::log_text::MOST),
        next_offset: reader.offset(),
    };
    let (mut has_text, mut has_port, mut has_ended) = (search.is_none(), goal.port.is_none(), false);
    let endless = search.is_none() && goal.port.is_none();
    let mut look = Instant::now();
    loop {
        while !(has_text && has_port) || endless {
            let Some(entry) = reader.next_entry().map_err(|error| unreadable_log(&error))? else { break };
            if let LogEntry::Data { stream, offset, bytes, .. } = entry
                && goal.stream.is_none_or(|wanted| wanted == stream)
            {
                let end = search.as_mut().filter(|_| !has_text).and_then(|search| search.push(stream, bytes));
                has_text |= end.is_some();
                // What comes after the line is left for the next call.
                let end = end.filter(|_| has_port).unwrap_or(bytes.len());
                read.output.push(bytes.get(..end).unwrap_or(bytes));
                read.next_offset = offset + u64::try_from(end).unwrap_or(0);
            } else {
                read.next_offset = reader.offset();
            }
        }
        if has_text && has_port && !endless {
            return Ok(Read { why: Followed::Reached, ..read });
        }
        if has_ended {
            return Ok(Read { why: Followed::Ended, ..read });
        }
        if Instant::now() >= until {
            return Ok(read);
        }
        let ended = || {
            let now = Instant::now();
            has_ended = files.is_silent();
            if let Some(port) = goal.port.filter(|_| !has_port && now >= look) {
                has_port = listens(root, known, port);
                look = Instant::now() + LOOK;
            }
            has_ended || now >= until || (goal.port.is_some() && has_port)
        };
        match reader.wait(ended, Some(cancel.as_fd())).map_err(|error| unreadable_log(&error))? {
            LogWaitEnd::HungUp => return Ok(Read { why: Followed::Cancelled, ..read }),
            LogWaitEnd::More | LogWaitEnd::Ended => {}
        }
    }
}

/// Whether a member listens on this port; a look that fails sees nothing.
fn listens(root: &Path, known: &SandboxRef, wanted: u16) -> bool {
    let resolver = Resolver::new(root);
    let Some(known) = resolver.resolve(&known.id).ok() else { return false };
    let Some(seen) = view::observe_sandbox(&resolver, &known) else { return false };
    let is_wanted = |port: Port| wanted == 0 || port.port == wanted;
    ports_of(&resolver, &known, &seen).is_ok_and(|found| found.iter().any(|one| is_wanted(one.port)))
}

/// A search for a text in lines that come in pieces, from two streams.
#[derive(Debug)]
struct Search {
    text: String,
    /// The start of the last line of each stream.
    pending: [Vec<u8>; 2],
}

impl Search {
    fn new(text: String) -> Search {
        Search { text, pending: [Vec::new(), Vec::new()] }
    }

    /// Adds output. If a line contains the text, returns the number of bytes up to the end of the line.
    fn push(&mut self, stream: Stream, bytes: &[u8]) -> Option<usize> {
        let [out, err] = &mut self.pending;
        let pending = if stream == Stream::Stdout { out } else { err };
        let mut end = 0;
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            end += piece.len();
            pending.extend_from_slice(piece);
            let surplus = pending.len().saturating_sub(LONGEST_LINE);
            pending.drain(..surplus);
            if plain_text(pending).contains(&self.text) {
                pending.clear();
                return Some(end);
            }
            if piece.ends_with(b"\n") {
                pending.clear();
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_in_pieces_and_colours() {
        let mut search = Search::new("ready in 5".to_owned());
        assert_eq!(search.push(Stream::Stdout, b"rea"), None);
        assert_eq!(search.push(Stream::Stderr, b"dy in 5\n"), None);
        assert_eq!(search.push(Stream::Stdout, b"dy \x1b[1min\x1b[0m"), None);
        assert_eq!(search.push(Stream::Stdout, b" 57 ms\nmore\n"), Some(7));
        assert_eq!(search.push(Stream::Stdout, b"ready\nin 5\n"), None);
        assert_eq!(search.push(Stream::Stdout, b"x\nready in 5"), Some(12));
    }
}
