//! The logs of several sandboxes, line by line.

use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use penfold_state::Files;
use penfold_state::log::{LogEntry, LogError, LogReader, LogWaitEnd, Stream};
use penfold_state::time::format_rfc3339;

use super::object::{self, Of, Text};
use super::{LogsArgs, gap_of, open, unreadable, wait};
use crate::args::verb::Global;
use crate::exit_codes;
use crate::failure::{Failure, FailureKind};
use crate::output::WriteError;
use crate::text::remark::{bytes, remark};

/// The lines that a reader may be ahead.
const AHEAD: usize = 64;
/// The longest line; a longer one becomes several.
const LONGEST: usize = 16 << 10;
/// The colours of the names, one after the other: cyan, yellow, green, magenta, blue.
const COLOURS: [u8; 5] = [36, 33, 32, 35, 34];

/// One sandbox.
struct Source {
    id: String,
    name: Option<String>,
    record: Files,
    reader: LogReader,
}

/// What a reader says.
enum Said {
    Line(Line),
    /// A gap in the log, as a sentence.
    Gap(String),
    /// The log cannot be read on.
    Failed(LogError),
}

struct Line {
    stream: Stream,
    time: u64,
    offset: u64,
    bytes: Vec<u8>,
}

/// Shows the logs: what there is in the order of its time, then new output as it comes.
pub(super) fn logs(global: &Global, args: &LogsArgs, words: &[String]) -> Result<u8, Failure> {
    let mut sources = Vec::new();
    for word in words {
        let (record, reader) = open(global, word, args)?;
        let name = record.intent().ok().and_then(|intent| intent.held_name());
        let id = record.name().to_owned();
        if !sources.iter().any(|source: &Source| source.id == id) {
            sources.push(Source { id, name, record, reader });
        }
    }
    if sources.is_empty() {
        return Err(Failure::new(FailureKind::Usage, "missing `ID`").hint("`penfold ps` lists the sandboxes"));
    }
    let titles: Vec<(String, Option<String>)> =
        sources.iter().map(|source| (source.id.clone(), source.name.clone())).collect();
    let coloured = global.color.wanted(&io::stdout());
    let mut shown = Shown::new(args, &titles, coloured);
    let (new, later) = channel();
    let mut kept = Vec::new();
    for (index, source) in sources.into_iter().enumerate() {
        let (sender, receiver) = sync_channel(AHEAD);
        kept.push(receiver);
        let (args, new) = (args.clone(), new.clone());
        let begun = std::thread::Builder::new().spawn(move || read(source, &args, index, sender, &new));
        begun.map_err(|error| Failure::new(FailureKind::Other, "cannot start a thread").because(error))?;
    }
    drop(new);
    let done = merge(&kept, &mut shown).and_then(|()| {
        drop(kept);
        later.into_iter().try_for_each(|(index, said)| shown.say(index, said))
    });
    match done {
        Ok(()) => shown.finish(),
        Err(Stopped::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(exit_codes::SUCCESS),
        Err(Stopped::Write(error)) => Err(WriteError::Stdout(error).into()),
        Err(Stopped::Read(failure)) => Err(failure),
    }
}

/// The error that stopped the output.
enum Stopped {
    Read(Failure),
    Write(io::Error),
}

/// Shows what all readers have read, the earliest line first.
fn merge(kept: &[Receiver<Said>], shown: &mut Shown<'_>) -> Result<(), Stopped> {
    let mut heads: Vec<Option<Said>> = kept.iter().map(|receiver| receiver.recv().ok()).collect();
    loop {
        let time = |said: &Said| if let Said::Line(line) = said { line.time } else { 0 };
        let first = heads.iter().enumerate().filter_map(|(at, head)| Some((time(head.as_ref()?), at))).min();
        let Some((_, at)) = first else { return io::stdout().flush().map_err(Stopped::Write) };
        let next = kept.get(at).and_then(|receiver| receiver.recv().ok());
        let said = heads.get_mut(at).and_then(|head| std::mem::replace(head, next));
        if let Some(said) = said {
            shown.say(at, said)?;
        }
    }
}

/// Reads a log to its end, then what is new. Nobody listens any more if a send fails.
fn read(
    mut source: Source,
    args: &LogsArgs,
    index: usize,
    kept: SyncSender<Said>,
    new: &Sender<(usize, Said)>,
) {
    let mut lines = Lines::default();
    let all = lines.read(&mut source.reader, args, |said| kept.send(said).is_ok());
    if !args.follow {
        lines.finish(|said| kept.send(said).is_ok());
    }
    drop(kept);
    if !all || !args.follow {
        return;
    }
    let stdout = io::stdout();
    loop {
        match wait(&mut source.reader, &source.record, stdout.as_fd()) {
            Ok(LogWaitEnd::More) => {}
            Ok(LogWaitEnd::Ended) => break,
            Ok(LogWaitEnd::HungUp) => return,
            Err(error) => {
                let _ = new.send((index, Said::Failed(error)));
                return;
            }
        }
        if !lines.read(&mut source.reader, args, |said| new.send((index, said)).is_ok()) {
            return;
        }
    }
    lines.finish(|said| new.send((index, said)).is_ok());
}

/// The unfinished lines of a log.
#[derive(Default)]
struct Lines {
    open: [Option<Line>; 2],
}

impl Lines {
    /// Reads what is there; false if nobody listens or the log cannot be read.
    fn read(&mut self, reader: &mut LogReader, args: &LogsArgs, mut send: impl FnMut(Said) -> bool) -> bool {
        loop {
            let goes_on = match reader.next_entry() {
                Ok(Some(LogEntry::Data { stream, time, offset, bytes })) => {
                    let begun = Line { stream, time, offset, bytes: Vec::new() };
                    !args.wants(stream, time) || self.add(&begun, bytes, &mut send)
                }
                Ok(Some(gap)) => {
                    let (kind, count) = gap_of(&gap);
                    send(Said::Gap(format!("{} {kind}", bytes(count))))
                }
                Ok(None) => return true,
                Err(error) => {
                    send(Said::Failed(error));
                    return false;
                }
            };
            if !goes_on {
                return false;
            }
        }
    }

    /// Adds bytes of the stream, time and offset of `at`.
    fn add(&mut self, at: &Line, bytes: &[u8], send: &mut impl FnMut(Said) -> bool) -> bool {
        let Line { stream, time, mut offset, .. } = *at;
        let open = &mut self.open[usize::from(stream == Stream::Stderr)];
        for mut piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            while !piece.is_empty() {
                let line = open.get_or_insert(Line { stream, time, offset, bytes: Vec::new() });
                let (now, later) = piece.split_at(piece.len().min(LONGEST - line.bytes.len()));
                line.bytes.extend_from_slice(now);
                offset += u64::try_from(now.len()).unwrap_or(0);
                piece = later;
                let is_whole = line.bytes.ends_with(b"\n") || line.bytes.len() >= LONGEST;
                if is_whole && !open.take().is_none_or(|line| send(Said::Line(line))) {
                    return false;
                }
            }
        }
        true
    }

    fn finish(&mut self, mut send: impl FnMut(Said) -> bool) {
        for line in self.open.iter_mut().filter_map(Option::take) {
            send(Said::Line(line));
        }
    }
}

/// The output.
struct Shown<'a> {
    args: &'a LogsArgs,
    titles: &'a [(String, Option<String>)],
    prefixes: Vec<String>,
    failure: Option<Failure>,
    buffer: Vec<u8>,
}

impl<'a> Shown<'a> {
    fn new(args: &'a LogsArgs, titles: &'a [(String, Option<String>)], coloured: bool) -> Shown<'a> {
        let title = |(id, name): &'a (String, Option<String>)| name.as_deref().unwrap_or(id);
        let width = titles.iter().map(|both| title(both).len()).max().unwrap_or(0);
        let prefix = |(index, both)| {
            let plain = format!("{:width$} |", title(both));
            let colour = COLOURS.get(index % COLOURS.len()).filter(|_| coloured);
            colour.map_or_else(|| format!("{plain} "), |code| format!("\u{1b}[{code}m{plain}\u{1b}[0m "))
        };
        let prefixes = titles.iter().enumerate().map(prefix).collect();
        Shown { args, titles, prefixes, failure: None, buffer: Vec::new() }
    }

    fn say(&mut self, index: usize, said: Said) -> Result<(), Stopped> {
        let Some((id, name)) = self.titles.get(index) else { return Ok(()) };
        match said {
            Said::Line(line) => self.line(index, id, name.as_deref(), &line).map_err(Stopped::Write),
            Said::Gap(sentence) => {
                remark(&format!("sandbox {id}: {sentence}"));
                Ok(())
            }
            // The others go on.
            Said::Failed(error) => {
                let failure = unreadable(id, error);
                if self.args.follow {
                    self.failure = Some(failure);
                    return Ok(());
                }
                Err(Stopped::Read(failure))
            }
        }
    }

    fn line(&mut self, index: usize, id: &str, name: Option<&str>, line: &Line) -> io::Result<()> {
        self.buffer.clear();
        if self.args.json {
            let of = Some(Of { sandbox: id, name });
            let Line { stream, time, offset, bytes } = line;
            let text = Text { stream: *stream, time: *time, offset: *offset, bytes };
            object::write(&mut self.buffer, of, text)?;
        } else {
            let prefix = self.prefixes.get(index).map_or("", String::as_str);
            self.buffer.extend_from_slice(prefix.as_bytes());
            if self.args.timestamps {
                self.buffer.extend_from_slice(format!("{} ", format_rfc3339(line.time)).as_bytes());
            }
            self.buffer.extend_from_slice(&line.bytes);
            if !line.bytes.ends_with(b"\n") {
                self.buffer.push(b'\n');
            }
        }
        let is_error = line.stream == Stream::Stderr && !self.args.stderr && !self.args.json;
        if is_error {
            io::stdout().flush()?;
            io::stderr().lock().write_all(&self.buffer)
        } else {
            io::stdout().lock().write_all(&self.buffer)
        }
    }

    fn finish(self) -> Result<u8, Failure> {
        match io::stdout().flush() {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(WriteError::Stdout(error).into()),
            _ => self.failure.map_or(Ok(exit_codes::SUCCESS), Err),
        }
    }
}
