//! Prints a log as bytes, as lines with times, or as JSON.

use std::io::{self, Write};

use penfold_state::log::Stream;
use penfold_state::time::format_rfc3339;
use rustix::io::Errno;

use super::LogsArgs;
use super::object::{self, Text};

/// The output is written when this many bytes are collected.
const BUFFER: usize = 64 << 10;
/// The maximum text of one JSON object; a longer line becomes several objects.
const LONGEST_TEXT: usize = 16 << 10;

/// The output of a log in the requested format.
pub(crate) struct Output {
    form: Form,
    /// Both streams go to standard output.
    joined: bool,
    buffer: Vec<u8>,
    /// The destination of the buffer.
    to: Stream,
    /// The unfinished line of each stream.
    open: [Line; 2],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Bytes,
    Times,
    Json,
}

#[derive(Default)]
struct Line {
    has_begun: bool,
    time: u64,
    offset: u64,
    bytes: Vec<u8>,
}

impl Output {
    pub(crate) fn new(args: &LogsArgs) -> Output {
        let form = match (args.json, args.timestamps) {
            (true, _) => Form::Json,
            (false, true) => Form::Times,
            (false, false) => Form::Bytes,
        };
        let joined = args.stderr || args.json;
        Output { form, joined, buffer: Vec::new(), to: Stream::Stdout, open: Default::default() }
    }

    /// Adds output of a stream.
    pub(crate) fn data(&mut self, stream: Stream, time: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let to = if self.joined { Stream::Stdout } else { stream };
        if to != self.to || self.buffer.len() >= BUFFER {
            self.flush()?;
            self.to = to;
        }
        match self.form {
            Form::Bytes => self.buffer.extend_from_slice(bytes),
            Form::Times => self.with_times(stream, time, bytes),
            Form::Json => return self.objects(stream, time, offset, bytes),
        }
        Ok(())
    }

    fn with_times(&mut self, stream: Stream, time: u64, bytes: &[u8]) {
        let line = &mut self.open[index(stream)];
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            if !line.has_begun {
                self.buffer.extend_from_slice(format_rfc3339(time).as_bytes());
                self.buffer.push(b' ');
            }
            line.has_begun = !piece.ends_with(b"\n");
            self.buffer.extend_from_slice(piece);
        }
    }

    fn objects(&mut self, stream: Stream, time: u64, mut offset: u64, bytes: &[u8]) -> io::Result<()> {
        for mut piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            while !piece.is_empty() {
                let line = &mut self.open[index(stream)];
                if line.bytes.is_empty() {
                    (line.time, line.offset) = (time, offset);
                }
                let (now, later) = piece.split_at(piece.len().min(LONGEST_TEXT - line.bytes.len()));
                line.bytes.extend_from_slice(now);
                offset += u64::try_from(now.len()).unwrap_or(0);
                piece = later;
                if line.bytes.ends_with(b"\n") || line.bytes.len() >= LONGEST_TEXT {
                    self.object(stream)?;
                }
            }
        }
        Ok(())
    }

    /// Writes the unfinished line as an object. An incomplete UTF-8 character at its end moves to the next object.
    fn object(&mut self, stream: Stream) -> io::Result<()> {
        let line = &mut self.open[index(stream)];
        let cut = if line.bytes.len() >= LONGEST_TEXT { incomplete_character(&line.bytes) } else { 0 };
        let rest = line.bytes.split_off(line.bytes.len() - cut);
        let text = Text { stream, time: line.time, offset: line.offset, bytes: &line.bytes };
        object::write(&mut self.buffer, None, text)?;
        line.offset += u64::try_from(line.bytes.len()).unwrap_or(0);
        line.bytes = rest;
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    /// Writes the buffer.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let result = match self.to {
            Stream::Stdout => write_all(rustix::stdio::stdout(), &self.buffer),
            // The lock keeps messages of this process out of the output.
            Stream::Stderr => io::stderr().lock().write_all(&self.buffer),
        };
        self.buffer.clear();
        result
    }

    /// Writes the buffer and the unfinished lines.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        for stream in [Stream::Stdout, Stream::Stderr] {
            if !self.open[index(stream)].bytes.is_empty() {
                self.object(stream)?;
            }
            if !self.open[index(stream)].bytes.is_empty() {
                self.object(stream)?;
            }
        }
        self.flush()
    }
}

/// Writes all bytes with write(2): `Stdout` would search all of them for line feeds.
fn write_all(fd: std::os::fd::BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_for_room(fd)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Waits until the descriptor is writable: another process that shares it may have made it nonblocking.
fn wait_for_room(fd: std::os::fd::BorrowedFd<'_>) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    match poll(&mut [PollFd::new(&fd, PollFlags::OUT)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn index(stream: Stream) -> usize {
    usize::from(stream == Stream::Stderr)
}

/// The number of bytes at the end that begin an incomplete UTF-8 character.
fn incomplete_character(bytes: &[u8]) -> usize {
    let tail = bytes.get(bytes.len().saturating_sub(3)..).unwrap_or_default();
    (1..=tail.len())
        .find(|&back| {
            let last = tail.get(tail.len() - back..).unwrap_or_default();
            std::str::from_utf8(last)
                .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(form: Form) -> Output {
        Output { form, joined: true, buffer: Vec::new(), to: Stream::Stdout, open: Default::default() }
    }

    fn objects(output: &Output) -> Vec<serde_json::Value> {
        let text = std::str::from_utf8(&output.buffer).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_line_in_pieces_has_one_time_and_streams_do_not_mix() {
        let mut output = output(Form::Times);
        output.data(Stream::Stdout, 0, 0, b"a").unwrap();
        output.data(Stream::Stderr, 1_000_000_000, 0, b"x\n").unwrap();
        output.data(Stream::Stdout, 2_000_000_000, 0, b"b\nc\n").unwrap();
        let expected = "1970-01-01T00:00:00.000000000Z a1970-01-01T00:00:01.000000000Z x\nb\n\
            1970-01-01T00:00:02.000000000Z c\n";
        assert_eq!(String::from_utf8_lossy(&output.buffer), expected);
    }

    #[test]
    fn an_object_is_a_line_and_says_where_it_begins() {
        let mut output = output(Form::Json);
        output.data(Stream::Stdout, 0, 100, b"one\ntw").unwrap();
        output.data(Stream::Stderr, 0, 200, b"\xff\n").unwrap();
        output.data(Stream::Stdout, 1, 300, b"o\n").unwrap();
        let found = objects(&output);
        let short: Vec<_> = found.iter().map(|o| (o["text"].as_str().unwrap(), &o["offset"])).collect();
        assert_eq!(short.iter().map(|(text, _)| *text).collect::<Vec<_>>(), ["one\n", "\u{fffd}\n", "two\n"]);
        assert_eq!(
            short.iter().map(|(_, offset)| offset.as_u64().unwrap()).collect::<Vec<_>>(),
            [100, 200, 104]
        );
        assert_eq!((found[1]["stream"].as_str(), found[0]["schema"].as_u64()), (Some("stderr"), Some(1)));
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let mut output = output(Form::Json);
        let text = format!("x{}", "é".repeat(20_000));
        output.data(Stream::Stdout, 0, 0, text.as_bytes()).unwrap();
        output.object(Stream::Stdout).unwrap();
        let found = objects(&output);
        let joined: String = found.iter().map(|object| object["text"].as_str().unwrap()).collect();
        assert_eq!(joined, text);
        assert!(found.len() == 3 && output.buffer.len() < 50_000);
    }

    #[test]
    fn the_beginning_of_a_character_is_known() {
        for (bytes, expected) in [
            (&b"abc"[..], 0),
            (b"", 0),
            (b"ab\xc3", 1),
            (b"a\xe2\x82", 2),
            ("a\u{e9}".as_bytes(), 0),
            (b"\xf0\x9f\x98", 3),
            (b"a\xff", 0),
            (b"a\x80", 0),
        ] {
            assert_eq!(incomplete_character(bytes), expected, "{bytes:?}");
        }
    }
}
