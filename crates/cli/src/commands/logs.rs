//! `penfold logs`.

mod object;
mod on_server;
mod several;
pub(crate) mod write;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use clap::Args;
use penfold_state::Files;
use penfold_state::log::{LogEntry, LogError, LogPosition, LogReader, LogWaitEnd, Stream};
use rustix::event::Timespec;

use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind};
use crate::output::WriteError;
use crate::sandboxes::find;
use crate::sandboxes::on_server::OnServer;
use crate::text::remark::{bytes, remark};
use crate::text::time::{Since, since};
use crate::{exit_codes, value};
use write::Output;

/// The verb `logs`.
pub(crate) const VERB: Verb = Verb {
    name: "logs",
    aliases: &[],
    about: "Show the output of detached sandboxes",
    description: "Shows the output of a detached sandbox byte for byte: standard output on standard output, standard error \
        on standard error. penfold keeps the log after the end, until `penfold rm`. A full log drops the oldest output. \
        After a restart the log goes on, with a line between two lives. \
        The lines of several sandboxes are shown in the order of their times, each after the name of its sandbox.",
    examples: &[
        ("penfold logs web", "show the complete log"),
        ("penfold logs -f -n 20 web", "show the last 20 lines and new output, until the end"),
        ("penfold logs -f web worker", "follow two sandboxes, with the name before each line"),
        ("penfold logs --since 10m -t 3f9a", "show the last ten minutes with a time on each line"),
        ("penfold logs --json -f web", "print one JSON object per line, for programs"),
        ("penfold --host http://127.0.0.1:3000 logs -f web", "follow the log of a sandbox of a server"),
    ],
    usage_failure: FailureKind::Usage,
    define: LogsArgs::augment_args,
    places: Places::All(|global, client, matches| {
        on_server::logs(global, &OnServer(client), &usage::read(&VERB, matches)?)
    }),
    call: |global, matches| logs(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold logs`.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[derive(Args, Clone, Debug)]
pub(crate) struct LogsArgs {
    /// Ids, unique prefixes of ids, or names; `-` reads them from standard input.
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
    /// Also show new output until the sandbox has ended.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Show only the last N lines.
    #[arg(short = 'n', long = "lines", visible_alias = "tail", value_name = "N", value_parser = value::number, conflicts_with = "since")]
    pub(crate) lines: Option<u64>,
    /// Show only output not older than a duration such as `10m`, or a time such as `2026-11-21T10:35:00Z`.
    #[arg(long, value_name = "TIME", value_parser = since, allow_hyphen_values = true)]
    pub(crate) since: Option<Since>,
    /// Show only output not younger than this, in the same forms.
    #[arg(long, value_name = "TIME", value_parser = since, allow_hyphen_values = true, conflicts_with = "follow")]
    pub(crate) until: Option<Since>,
    /// Print the time (UTC) before each line.
    #[arg(short, long)]
    pub(crate) timestamps: bool,
    /// Show only the output to standard error, on standard output.
    #[arg(long)]
    pub(crate) stderr: bool,
    /// Print one JSON object per line.
    #[arg(long, conflicts_with = "timestamps")]
    pub(crate) json: bool,
}

impl LogsArgs {
    /// Whether output of this stream and time is shown. The log is opened at the place that `--since` asks for.
    pub(crate) fn wants(&self, stream: Stream, time: u64) -> bool {
        (!self.stderr || stream == Stream::Stderr)
            && self.until.is_none_or(|until| time <= until.nanoseconds())
    }
}

/// The time that the start or removal of a sandbox may take; after that a missing log is an error.
const PATIENCE: Duration = Duration::from_secs(2);
/// The interval between attempts to open the log.
const RETRY_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Shows the log, and follows it with `--follow`.
pub(crate) fn logs(global: &Global, args: &LogsArgs) -> Result<u8, Failure> {
    let words = find::read_words(&args.ids)?;
    let [id] = words.as_slice() else { return several::logs(global, args, &words) };
    let (record, mut reader) = open(global, id, args)?;
    let mut output = Output::new(args);
    match show(&mut reader, &record, args, &mut output) {
        Ok(()) => {}
        // EPIPE is success: the reader closed standard output, as `head` does.
        Err(Stopped::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(Stopped::Write(error)) => {
            return Err(WriteError::Stdout(error).into());
        }
        Err(Stopped::Read(error)) => return Err(unreadable(record.name(), error)),
    }
    if reader.lost() > 0 && !global.quiet {
        remark(&format!("{} of output were lost: the log could not be written", bytes(reader.lost())));
    }
    Ok(exit_codes::SUCCESS)
}

/// Opens the log. Retries for [`PATIENCE`] if the sandbox is just starting: its log may not exist yet.
fn open(global: &Global, id: &str, args: &LogsArgs) -> Result<(Files, LogReader), Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        let known = find::resolver(global).resolve(id)?;
        // Checked before the log is opened: a complete record without a log never gets one.
        let passing = known.is_passing();
        let lost = |what: &str| {
            Failure::new(
                FailureKind::Other,
                format!("cannot read the log of sandbox `{}`: {what} is lost", known.id),
            )
        };
        let record = known.record.as_ref().ok_or_else(|| lost("its record"))?;
        match LogReader::open(record.dir(), begin(args)) {
            Ok(reader) => return Ok((record.clone(), reader)),
            Err(LogError::Missing) if (passing || known.is_passing()) && Instant::now() < until => {
                let _ = rustix::event::poll(&mut [], Some(&RETRY_INTERVAL));
            }
            Err(LogError::Missing)
                if known.intent.as_ref().is_some_and(|intent| intent.detached.is_some()) =>
            {
                return Err(lost("the log"));
            }
            Err(LogError::Missing) => {
                let sentence = format!("sandbox `{}` has no log", known.id);
                return Err(Failure::new(FailureKind::Other, sentence)
                    .hint("only a sandbox of `penfold run -d` has a log"));
            }
            Err(error) => return Err(unreadable(&known.id, error)),
        }
    }
}

fn unreadable(id: &str, error: LogError) -> Failure {
    Failure::new(FailureKind::from(&error), format!("cannot read the log of sandbox `{id}`")).because(error)
}

fn begin(args: &LogsArgs) -> LogPosition {
    let only = args.stderr.then_some(Stream::Stderr);
    match (args.lines, args.since) {
        (Some(lines), _) => LogPosition::Last { lines, of: only },
        (None, Some(since)) => LogPosition::Since(since.nanoseconds()),
        (None, None) => LogPosition::Start,
    }
}

/// The error that stopped the output.
enum Stopped {
    Read(LogError),
    Write(io::Error),
}

fn show(reader: &mut LogReader, record: &Files, args: &LogsArgs, output: &mut Output) -> Result<(), Stopped> {
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
            LogWaitEnd::More => {}
            LogWaitEnd::Ended => break,
            LogWaitEnd::HungUp => return Ok(()),
        }
    }
    output.finish().map_err(Stopped::Write)
}

/// Waits for new output, the end of the last life of the sandbox, or a closed standard output.
///
/// A lock that cannot be tested counts as held: if penfold cannot tell, the sandbox counts as alive.
fn wait(reader: &mut LogReader, record: &Files, stdout: BorrowedFd<'_>) -> Result<LogWaitEnd, LogError> {
    reader.wait(|| record.is_silent(), Some(stdout))
}

fn show_entry(entry: &LogEntry<'_>, args: &LogsArgs, output: &mut Output) -> io::Result<()> {
    let (kind, count) = match *entry {
        LogEntry::Data { stream, time, .. } if !args.wants(stream, time) => return Ok(()),
        LogEntry::Data { stream, time, offset, bytes } => return output.data(stream, time, offset, bytes),
        ref gap => gap_of(gap),
    };
    output.flush()?;
    remark(&format!("{} {kind}", bytes(count)));
    Ok(())
}

/// What happened to output that is not in the log, and its length.
fn gap_of(entry: &LogEntry<'_>) -> (&'static str, u64) {
    match *entry {
        LogEntry::Data { bytes, .. } => ("of output", u64::try_from(bytes.len()).unwrap_or(u64::MAX)),
        LogEntry::Lost { bytes, .. } => ("of output were lost: the log could not be written", bytes),
        LogEntry::Missed { bytes } => ("of output were overwritten before `penfold logs` read them", bytes),
        LogEntry::Damaged { bytes, .. } => ("of the log are damaged", bytes),
    }
}
