//! What goes into a context and comes out of it.
//!
//! A request is JSON, divided into lines that each are one write of at most 4096 bytes: the kernel divides none, so several servers can
//! write to one context. Each line begins with the token of the request. Between the output of the code, the context writes marks of
//! the same form. The code does not know the token, so none of its output is a mark.

use std::fmt::Write as _;

use serde_json::{Value, json};

/// The bytes that a write to a pipe may have so that the kernel does not divide it.
const LONGEST: usize = 4096;
/// The bytes of a request in one line.
const PART: usize = 4000;
/// The characters of a token.
const TOKEN: usize = 32;
/// The byte before each mark.
const SIGN: u8 = 0x1e;
/// The largest event. A driver sends no larger one.
const LARGEST: usize = 17 << 20;

/// Makes a token that nobody knows.
pub(super) fn new_token() -> String {
    let mut random = [0; TOKEN / 2];
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    format!("{:032x}", u128::from_le_bytes(random))
}

/// Returns the lines of a request, each to be written at once.
pub(super) fn request_lines(token: &str, request: &Value) -> Vec<String> {
    let text = ascii_json(request);
    let mut lines = Vec::with_capacity(text.len() / PART + 1);
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (part, tail) = rest.split_at(rest.len().min(PART));
        let kind = if tail.is_empty() { '.' } else { '-' };
        lines.push(format!("{token}{kind}{part}\n"));
        rest = tail;
    }
    lines
}

/// Writes JSON of ASCII characters only: whoever reads it in parts divides no character.
pub(super) fn ascii_json(value: &Value) -> String {
    let text = value.to_string();
    if text.is_ascii() {
        return text;
    }
    let mut ascii = String::with_capacity(text.len() * 2);
    for character in text.chars() {
        if character.is_ascii() {
            ascii.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a String cannot fail.
            let _ = write!(ascii, "\\u{unit:04x}");
        }
    }
    ascii
}

/// What one stream of a context has of a run.
#[derive(Debug, PartialEq)]
pub(super) enum Piece {
    Output(Vec<u8>),
    Event(Value),
    /// The run has ended.
    End,
}

/// Finds the marks of one run in a stream of its context.
#[derive(Debug)]
pub(super) struct Marks {
    /// What each mark begins with.
    start: Vec<u8>,
    /// The beginning of what may become a mark.
    begun: Vec<u8>,
    /// The beginning of an event.
    event: Vec<u8>,
    /// Whether a part of the event may be lost.
    is_cut: bool,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// What comes is of other runs.
    Before,
    During,
    After,
}

/// What the bytes after a sign are.
enum Look {
    Output,
    /// More bytes decide.
    Incomplete,
    /// A mark of so many bytes.
    Mark(usize),
}

impl Marks {
    pub(super) fn new(token: &str) -> Marks {
        let start = [&[SIGN], token.as_bytes()].concat();
        Marks { start, begun: Vec::new(), event: Vec::new(), is_cut: false, state: State::Before }
    }

    /// Tells whether the run has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.state != State::Before
    }

    /// Tells whether the run has ended.
    pub(super) fn is_over(&self) -> bool {
        self.state == State::After
    }

    /// Takes the next bytes of the stream, and returns what they have of the run.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<Piece> {
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let (mut pieces, mut output, mut rest) = (Vec::new(), Vec::new(), all.as_slice());
        while let Some(at) = rest.iter().position(|&byte| byte == SIGN) {
            let (before, sign) = rest.split_at(at);
            output.extend_from_slice(before);
            rest = sign;
            match self.look(rest) {
                Look::Incomplete => break,
                Look::Output => {
                    output.push(SIGN);
                    rest = rest.get(1..).unwrap_or_default();
                }
                Look::Mark(length) => {
                    self.put(std::mem::take(&mut output), &mut pieces);
                    let (mark, tail) = rest.split_at(length);
                    self.read_mark(mark, &mut pieces);
                    rest = tail;
                }
            }
        }
        if rest.first() == Some(&SIGN) {
            self.begun = rest.to_vec();
        } else {
            output.extend_from_slice(rest);
        }
        self.put(output, &mut pieces);
        pieces
    }

    /// Goes on after a part of the stream that was lost: what was begun before has no end.
    pub(super) fn skip(&mut self) {
        self.begun.clear();
        self.event.clear();
        self.is_cut = true;
    }

    fn put(&self, output: Vec<u8>, pieces: &mut Vec<Piece>) {
        if self.state == State::During && !output.is_empty() {
            pieces.push(Piece::Output(output));
        }
    }

    fn look(&self, bytes: &[u8]) -> Look {
        if !bytes.starts_with(&self.start) {
            return if self.start.starts_with(bytes) { Look::Incomplete } else { Look::Output };
        }
        match bytes.iter().take(LONGEST).position(|&byte| byte == b'\n') {
            Some(at) => Look::Mark(at + 1),
            None if bytes.len() < LONGEST => Look::Incomplete,
            None => Look::Output,
        }
    }

    fn read_mark(&mut self, mark: &[u8], pieces: &mut Vec<Piece>) {
        let body = mark.strip_suffix(b"\n").unwrap_or(mark).get(self.start.len()..).unwrap_or_default();
        let Some((kind, part)) = body.split_first() else { return };
        match kind {
            b'(' => self.state = State::During,
            b')' => {
                self.state = State::After;
                pieces.push(Piece::End);
            }
            b'-' if self.event.len() < LARGEST => self.event.extend_from_slice(part),
            b'.' => {
                self.event.extend_from_slice(part);
                let event = std::mem::take(&mut self.event);
                let is_cut = std::mem::take(&mut self.is_cut);
                match serde_json::from_slice::<Value>(&event) {
                    Ok(event) if event.is_object() => pieces.push(Piece::Event(event)),
                    _ if is_cut => {}
                    // It is too deep.
                    _ => pieces.push(Piece::Event(unreadable())),
                }
            }
            _ => {}
        }
    }
}

fn unreadable() -> Value {
    json!({ "type": "result", "text": "a result cannot be written as JSON", "metadata": {} })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_parts(stream: &[u8], token: &str, size: usize) -> (Vec<u8>, Vec<Value>, bool) {
        let mut marks = Marks::new(token);
        let (mut output, mut events) = (Vec::new(), Vec::new());
        for part in stream.chunks(size) {
            for piece in marks.take(part) {
                match piece {
                    Piece::Output(bytes) => output.extend(bytes),
                    Piece::Event(event) => events.push(event),
                    Piece::End => assert!(marks.is_over()),
                }
            }
        }
        (output, events, marks.is_over())
    }

    #[test]
    fn a_run_has_what_is_between_its_marks_however_it_is_divided() {
        let (token, other) = ("a".repeat(TOKEN), "b".repeat(TOKEN));
        let mut stream = format!("before\x1e{other}(\nother\x1e{other})\nbetween\x1e{token}(\n").into_bytes();
        stream.extend_from_slice(b"one\x1e\n\x1e\x1eaaa\n\xff");
        stream.extend_from_slice(format!("\x1e{other}.{{}}\n").as_bytes());
        stream
            .extend_from_slice(format!("\x1e{token}-{{\"type\":\n\x1e{token}.\"result\"}}\ntwo").as_bytes());
        stream.extend_from_slice(format!("\x1e{token})\nafter").as_bytes());
        let wanted = format!("one\x1e\n\x1e\x1eaaa\n?\x1e{other}.{{}}\ntwo");
        for size in 1..stream.len() {
            let (output, events, is_over) = in_parts(&stream, &token, size);
            assert_eq!(String::from_utf8_lossy(&output).replace('\u{fffd}', "?"), wanted, "by {size}");
            assert_eq!(events, [json!({ "type": "result" })], "by {size}");
            assert!(is_over);
        }
    }

    #[test]
    fn a_mark_without_an_end_is_output() {
        let token = "a".repeat(TOKEN);
        let mut marks = Marks::new(&token);
        assert_eq!(marks.take(format!("\x1e{token}(\n").as_bytes()), []);
        let long = format!("\x1e{token}.{}", "x".repeat(LONGEST));
        assert_eq!(marks.take(long.as_bytes()), [Piece::Output(long.clone().into_bytes())]);
    }

    #[test]
    fn each_line_of_a_request_is_one_write_of_ascii() {
        let token = new_token();
        assert_eq!(token.len(), TOKEN);
        assert_ne!(token, new_token());
        let request = json!({ "code": "é😀\n".repeat(5000) });
        let lines = request_lines(&token, &request);
        let mut text = String::new();
        for (number, line) in lines.iter().enumerate() {
            assert!(line.len() <= LONGEST && line.is_ascii() && line.ends_with('\n'));
            let (kind, part) = line.strip_prefix(&token).unwrap().split_at(1);
            assert_eq!(kind, if number + 1 == lines.len() { "." } else { "-" });
            text.push_str(part.trim_end());
        }
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), request);
    }
}
