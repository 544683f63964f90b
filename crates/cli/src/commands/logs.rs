//! `penfold logs`.

mod write;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use clap::Args;
use penfold_state::Files;
use penfold_state::log::{Entry, From, LogError, Reader, Stream, Waited};
use rustix::event::Timespec;

use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::failure::{Failure, FailureKind};
use crate::output::{self, WriteError};
use crate::sandboxes::find;
use crate::text::lines;
use crate::text::time::{Since, since};
use crate::{exit_codes, value};
use write::Output;

/// The verb `logs`.
pub(crate) const VERB: Verb = Verb {
    name: "logs",
    aliases: &[],
    about: "Show what a detached sandbox has written",
    description: "Shows what the command of a detached sandbox has written, byte for byte: its standard output on \
        standard output, its standard error on standard error. The log is kept after the end, until `penfold rm`. It \
        is bounded: when it is full the oldest goes first.",
    examples: &[
        ("penfold logs web", "show all that is kept"),
        ("penfold logs -f -n 20 web", "show the last 20 lines and what follows, until the end"),
        ("penfold logs --since 10m -t 3f9a", "show the last ten minutes, each line with its time"),
        ("penfold logs --json -f web", "one JSON object a line, for programs"),
    ],
    usage_failure: FailureKind::Usage,
    define: LogsArgs::augment_args,
    call: |global, matches| logs(global, &usage::read(&VERB, matches)?),
};

/// What `penfold logs` was asked to do.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[derive(Args, Clone, Debug)]
pub(crate) struct LogsArgs {
    /// Id, unique beginning of an id, or name.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Show also what is written from now on, until the sandbox has ended.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Show only the last lines.
    #[arg(short = 'n', long = "lines", value_name = "N", value_parser = value::number, conflicts_with = "since")]
    pub(crate) lines: Option<u64>,
    /// Show only what is not older: a duration, or a time as in `2026-11-21T10:35:00Z`.
    #[arg(long, value_name = "TIME", value_parser = since, allow_hyphen_values = true)]
    pub(crate) since: Option<Since>,
    /// Put the time (UTC) before each line.
    #[arg(short, long)]
    pub(crate) timestamps: bool,
    /// Show only what was written to standard error, on standard output.
    #[arg(long)]
    pub(crate) stderr: bool,
    /// Print one JSON object a line.
    #[arg(long, conflicts_with = "timestamps")]
    pub(crate) json: bool,
}

/// How long a sandbox may take to be made or put away before it counts as damaged.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it is looked whether it has a log by now.
const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Shows what is in the log, and follows it if that is wanted.
pub(crate) fn logs(global: &Global, args: &LogsArgs) -> Result<u8, Failure> {
    let (record, mut reader) = open(global, args)?;
    let mut output = Output::new(args);
    match show(&mut reader, &record, args, &mut output) {
        Ok(()) => {}
        // Who reads has seen enough.
        Err(Stopped::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(Stopped::Write(error)) => {
            return Err(WriteError::Stdout(error).into());
        }
        Err(Stopped::Read(error)) => return Err(unreadable(record.name(), error)),
    }
    if reader.lost() > 0 && !global.quiet {
        remark(&format!("{} could not be kept for want of room", bytes(reader.lost())));
    }
    Ok(exit_codes::SUCCESS)
}

/// Finds the log; that of a sandbox which is just being started may come a moment later.
fn open(global: &Global, args: &LogsArgs) -> Result<(Files, Reader), Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        let known = find::resolver(global).resolve(&args.id)?;
        // Before it is opened: what is seen to be whole then has a log or never gets one.
        let passing = known.is_passing();
        let missing = || Failure::new(FailureKind::Other, format!("sandbox `{}` has no log", known.id));
        let record = known.record.as_ref().ok_or_else(missing)?;
        match Reader::open(record.dir(), begin(args)) {
            Ok(reader) => return Ok((record.clone(), reader)),
            Err(LogError::Missing) if (passing || known.is_passing()) && Instant::now() < until => {
                let _ = rustix::event::poll(&mut [], Some(&MOMENT));
            }
            Err(LogError::Missing) => {
                return Err(missing().hint("only a detached sandbox has one: `penfold run -d`"));
            }
            Err(error) => return Err(unreadable(&known.id, error)),
        }
    }
}

fn unreadable(id: &str, error: LogError) -> Failure {
    Failure::new(FailureKind::from(&error), format!("cannot show the log of `{id}`")).because(error)
}

fn begin(args: &LogsArgs) -> From {
    let only = args.stderr.then_some(Stream::Stderr);
    match (args.lines, args.since) {
        (Some(lines), _) => From::Last { lines, of: only },
        (None, Some(since)) => From::Since(since.nanoseconds()),
        (None, None) => From::Start,
    }
}

/// What ended the showing.
enum Stopped {
    Read(LogError),
    Write(io::Error),
}

fn show(reader: &mut Reader, record: &Files, args: &LogsArgs, output: &mut Output) -> Result<(), Stopped> {
    let stdout = io::stdout();
    loop {
        while let Some(entry) = reader.next_entry().map_err(Stopped::Read)? {
            show_entry(&entry, args, output).map_err(Stopped::Write)?;
        }
        if !args.follow {
            break;
        }
        output.flush().map_err(Stopped::Write)?;
        match wait(reader, record, stdout.as_fd()).map_err(Stopped::Read)? {
            Waited::More => {}
            Waited::Ended => break,
            Waited::HungUp => return Ok(()),
        }
    }
    output.finish().map_err(Stopped::Write)
}

/// A lock that cannot be tested is taken for held: unknown means alive.
fn wait(reader: &mut Reader, record: &Files, stdout: BorrowedFd<'_>) -> Result<Waited, LogError> {
    reader.wait(|| record.has_ended() || record.lock().is_free(), Some(stdout))
}

fn show_entry(entry: &Entry<'_>, args: &LogsArgs, output: &mut Output) -> io::Result<()> {
    let (kind, count) = match *entry {
        Entry::Data { stream, .. } if args.stderr && stream != Stream::Stderr => return Ok(()),
        Entry::Data { stream, time, offset, bytes } => return output.data(stream, time, offset, bytes),
        Entry::Lost { bytes, .. } => ("could not be kept for want of room", bytes),
        Entry::Missed { bytes } => ("were overwritten before they could be shown", bytes),
        Entry::Damaged { bytes, .. } => ("of the log are damaged", bytes),
    };
    output.flush()?;
    remark(&format!("{} {kind}", bytes(count)));
    Ok(())
}

fn bytes(number: u64) -> String {
    if number == 1 { "1 byte".to_owned() } else { format!("{number} bytes") }
}

fn remark(words: &str) {
    let mut text = String::new();
    lines::say(&mut text, words);
    output::talk(&text);
}
