//! `logs` of a server.

use std::io;

use penfold_client::{Client, Error, Follow, LogEvent, LogFrame, LogRange};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::LogsArgs;
use super::write::Output;
use crate::args::verb::Global;
use crate::exit_codes;
use crate::failure::{Failure, FailureKind};
use crate::output::WriteError;
use crate::sandboxes::Sandboxes as _;
use crate::sandboxes::find::Miss;
use crate::sandboxes::on_server::{self, OnServer};
use crate::text::remark::{bytes, remark};

/// The most output that one request returns.
const PART: usize = 1 << 20;

/// Why the output stops before its end.
enum Stopped {
    Read(Error),
    Write(io::Error),
}

/// Shows the log, and follows it with `--follow`.
pub(super) fn logs(global: &Global, sandboxes: &OnServer, args: &LogsArgs) -> Result<u8, Failure> {
    let client = &sandboxes.0;
    // `since` and `until` are looked at with each frame, `timestamps` and `json` where it is shown.
    let &LogsArgs { ref ids, follow, lines, stderr, since: _, until: _, timestamps: _, json: _ } = args;
    let [word] = ids.as_slice() else {
        let sentence = "a server shows one log at a time";
        return Err(Failure::new(FailureKind::Usage, sentence).hint("give one id"));
    };
    let id = sandboxes.find(word).map_err(Miss::into_failure)?.id;
    let lines = lines.map(|lines| format!("&lines={lines}")).unwrap_or_default();
    let stream = if stderr { "&stream=stderr" } else { "" };
    let mut shown = Shown { args, output: Output::new(args), quiet: global.quiet };
    let path = format!("{}/logs", on_server::path(&id));
    let done = if follow {
        shown.follow(&mut Follow::new(client, format!("{path}?follow=true{lines}{stream}")))
    } else {
        shown.parts(client, &path, &lines, stream)
    };
    match done {
        Ok(()) => {}
        // EPIPE is success: the reader closed standard output, as `head` does.
        Err(Stopped::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(Stopped::Write(error)) => return Err(WriteError::Stdout(error).into()),
        Err(Stopped::Read(error)) => {
            // What was received is shown, so that a reader knows where the output stopped.
            let _ = shown.output.finish();
            return Err(unreadable(&id, error));
        }
    }
    Ok(exit_codes::SUCCESS)
}

fn unreadable(id: &str, error: Error) -> Failure {
    match error.problem().map(penfold_client::Problem::kind) {
        Some("not_found") => Failure::new(FailureKind::Other, format!("sandbox `{id}` has no log"))
            .hint("only a sandbox of `penfold run -d` has a log"),
        Some(_) => {
            Failure::new(FailureKind::Other, format!("cannot read the log of sandbox `{id}`")).because(error)
        }
        None => Failure::from(error),
    }
}

struct Shown<'a> {
    args: &'a LogsArgs,
    output: Output,
    quiet: bool,
}

impl Shown<'_> {
    fn parts(&mut self, client: &Client, path: &str, lines: &str, stream: &str) -> Result<(), Stopped> {
        let mut from = lines.to_owned();
        loop {
            let url = format!("{path}?limit={PART}{from}{stream}");
            let range: LogRange = client.persist(true, |client| client.get(&url)).map_err(Stopped::Read)?;
            let mut length = 0;
            self.gap(range.missed_bytes, MISSED);
            self.gap(range.lost_bytes, LOST);
            self.gap(range.damaged_bytes, DAMAGED);
            for frame in range.frames {
                length += self.frame(frame)?;
            }
            if range.complete || length < PART {
                return self.output.finish().map_err(Stopped::Write);
            }
            from = format!("&offset={}", range.next_offset);
        }
    }

    fn follow(&mut self, follow: &mut Follow<'_>) -> Result<(), Stopped> {
        loop {
            match follow.next_event().map_err(Stopped::Read)? {
                LogEvent::Output(frame) => {
                    self.frame(frame)?;
                    self.output.flush().map_err(Stopped::Write)?;
                }
                LogEvent::Missed(number) => self.gap(number, MISSED),
                LogEvent::Lost(number) => self.gap(number, LOST),
                LogEvent::Damaged(number) => self.gap(number, DAMAGED),
                LogEvent::Silence if is_hung_up() => return Ok(()),
                LogEvent::Silence | LogEvent::InputEnded => {}
                LogEvent::End(_) => return self.output.finish().map_err(Stopped::Write),
            }
        }
    }

    /// Shows one frame, and returns its length.
    fn frame(&mut self, frame: LogFrame) -> Result<usize, Stopped> {
        let (stream, time, offset) = (frame.stream, frame.time_ns, frame.offset);
        let bytes = frame.bytes();
        let is_wanted =
            self.args.wants(stream, time) && self.args.since.is_none_or(|since| time >= since.nanoseconds());
        if is_wanted {
            self.output.data(stream, time, offset, &bytes).map_err(Stopped::Write)?;
        }
        Ok(bytes.len())
    }

    fn gap(&mut self, number: u64, sentence: &str) {
        if number > 0 && !self.quiet {
            // The remark stands where the gap is. A failed write fails again with the next output.
            let _ = self.output.flush();
            remark(&format!("{} {sentence}", bytes(number)));
        }
    }
}

const LOST: &str = "of output were lost: the log could not be written";
const MISSED: &str = "of output were overwritten before `penfold logs` read them";
const DAMAGED: &str = "of the log are damaged";

/// Whether the reader of standard output is gone.
fn is_hung_up() -> bool {
    let stdout = io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    matches!(rustix::event::poll(&mut fds, Some(&Timespec::default())), Ok(1..))
}
