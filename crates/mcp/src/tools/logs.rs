//! `logs`: the output of a sandbox, and the wait for a text in it.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use penfold_control::{Resolver, SandboxRef, SandboxView};
use penfold_state::log::{LogPosition, Stream};
use serde_json::{Value, json};

use crate::answer::{ToolAnswer, ToolError};
use crate::arguments::{LogsArguments, StreamName, duration_of_seconds};
use crate::call::Cancel;
use crate::find::{sandbox_record, sandbox_words, view_sandbox};
use crate::follow::{Followed, Goal, follow_log};
use crate::host::ServerState;
use crate::log_text::{self, MOST, Part, open_log};

/// The number of lines, unless chosen otherwise.
const LINES: u64 = 50;
/// The time for `until`, unless chosen otherwise, and the longest.
const WAIT: f64 = 30.0;
const LONGEST_WAIT: Duration = Duration::from_mins(10);
/// The largest offset: that of a file.
const LARGEST_OFFSET: u64 = i64::MAX.cast_unsigned();

pub(super) fn logs(
    host: &ServerState,
    given: LogsArguments,
    cancel: &Cancel,
) -> Result<ToolAnswer, ToolError> {
    if given.offset.is_some_and(|offset| offset > LARGEST_OFFSET) {
        return Err(ToolError::new("`offset` is beyond any log; give a `next_offset` of an earlier answer"));
    }
    let wait = duration_of_seconds("timeout_s", given.timeout_s.unwrap_or(WAIT), LONGEST_WAIT)?;
    let (known, seen) = view_sandbox(&Resolver::new(host.root()), &given.sandbox)?;
    let files = sandbox_record(&known)?;
    let stream = given.stream.map(|stream| match stream {
        StreamName::Stdout => Stream::Stdout,
        StreamName::Stderr => Stream::Stderr,
    });
    if let Some(text) = given.until {
        if text.is_empty() || text.contains('\n') {
            return Err(ToolError::new("`until` is empty or more than a line"));
        }
        let goal = Goal { text: Some(text), port: None, stream };
        return until(host, &known, (given.offset, goal), Instant::now() + wait, cancel);
    }
    let part = match given.offset {
        Some(offset) => log_text::read_from(files, LogPosition::Offset(offset), stream, MOST)?,
        None => log_text::read_tail(files, given.lines.unwrap_or(LINES), stream)?,
    };
    let mut text = head(&seen);
    if part.more {
        let _ = write!(text, "; more follows at offset {}", part.next_offset);
    }
    text.push('\n');
    text.push_str(&part.text);
    Ok(ToolAnswer::new(text, data(&seen, &part, None)))
}

/// Waits for a text.
fn until(
    host: &ServerState,
    known: &SandboxRef,
    (offset, goal): (Option<u64>, Goal),
    until: Instant,
    cancel: &Cancel,
) -> Result<ToolAnswer, ToolError> {
    let wanted = goal.text.clone().unwrap_or_default();
    let mut reader =
        open_log(sandbox_record(known)?, offset.map_or(LogPosition::Start, LogPosition::Offset))?;
    let read = follow_log((host.root(), known), &mut reader, goal, until, cancel)?;
    let (_, seen) = view_sandbox(&Resolver::new(host.root()), &known.id)?;
    let part = Part {
        text: read.output.text(),
        next_offset: read.next_offset,
        more: false,
        cut: read.output.cut(),
        lost: 0,
    };
    let data = data(&seen, &part, Some(read.why == Followed::Reached));
    let (sentence, found) = match read.why {
        Followed::Reached => (format!("`{wanted}` has appeared; {}", head(&seen)), true),
        Followed::Ended => {
            (format!("`{wanted}` has not appeared, and no more output comes; {}", head(&seen)), false)
        }
        Followed::Late => (format!("`{wanted}` has not appeared in time; {}", head(&seen)), false),
        Followed::Cancelled => return Err(ToolError::new("the wait was cancelled")),
    };
    let text = format!("{sentence}\n{}", part.text);
    Ok(if found { ToolAnswer::new(text, data) } else { ToolAnswer::failed(text, data) })
}

fn head(seen: &SandboxView) -> String {
    format!("{} is {}", sandbox_words(&seen.id, seen.name.as_deref()), seen.status)
}

fn data(seen: &SandboxView, part: &Part, found: Option<bool>) -> Value {
    json!({
        "id": seen.id, "name": seen.name, "status": seen.status, "log": part.text, "next_offset": part.next_offset,
        "more": part.more, "cut_bytes": part.cut, "lost_bytes": part.lost, "found": found,
    })
}
