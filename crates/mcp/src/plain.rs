//! Output of programs as plain text: without colours and control characters, of a bounded length.

use std::collections::VecDeque;
use std::fmt::Write as _;

/// The most characters of a line that are shown.
const LONGEST_LINE: usize = 2000;

/// Returns bytes as text: invalid UTF-8 is replaced, escape sequences and control characters are left out, and a lone
/// carriage return begins a line. Of a long line, the middle is cut out.
pub(crate) fn plain_text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\u{1b}' => skip_sequence(&mut characters),
            '\r' if characters.peek() == Some(&'\n') => {}
            '\r' => out.push('\n'),
            '\n' | '\t' => out.push(character),
            _ if character.is_control() => {}
            _ => out.push(character),
        }
    }
    if out.lines().any(|line| line.len() > LONGEST_LINE) { with_short_lines(&out) } else { out }
}

/// Skips what follows an escape character: ECMA-48.
fn skip_sequence(characters: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match characters.next_if(|next| !matches!(next, '\n' | '\u{1b}')) {
        Some('[') => {
            while let Some(character) = characters.next_if(|next| (' '..='~').contains(next)) {
                if character >= '@' {
                    return;
                }
            }
        }
        // Strings, such as the title of a window, end with BEL or with an escape character and a backslash.
        Some(']' | 'P' | 'X' | '^' | '_') => {
            while let Some(character) = characters.next_if(|&next| next != '\n') {
                if character == '\u{7}' {
                    return;
                }
                if character == '\u{1b}' {
                    characters.next_if_eq(&'\\');
                    return;
                }
            }
        }
        // An intermediate character, as of a character set, is followed by a final one.
        Some(' '..='/') => {
            characters.next_if(|next| ('0'..='~').contains(next));
        }
        _ => {}
    }
}

fn with_short_lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for whole in text.split_inclusive('\n') {
        let line = whole.trim_end_matches('\n');
        let length = line.chars().count();
        if length <= LONGEST_LINE {
            out.push_str(whole);
            continue;
        }
        let half = LONGEST_LINE / 2;
        out.extend(line.chars().take(half));
        let _ = write!(out, " [{} characters cut] ", length - 2 * half);
        out.extend(line.chars().skip(length - half));
        out.push_str(whole.get(line.len()..).unwrap_or_default());
    }
    out
}

/// Returns the length of the longest start of these bytes that does not end inside of a character.
pub(crate) fn whole_characters(bytes: &[u8]) -> usize {
    // A character has four bytes at most.
    let from = bytes.len().saturating_sub(4);
    let last = bytes.get(from..).unwrap_or_default();
    let start = last.iter().rposition(|byte| byte & 0b1100_0000 != 0b1000_0000);
    match start.and_then(|start| Some((start, std::str::from_utf8(last.get(start..)?)))) {
        Some((start, Err(error))) if error.error_len().is_none() => from + start,
        _ => bytes.len(),
    }
}

/// The start and the end of output of any length.
#[derive(Debug)]
pub(crate) struct Bounded {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// The most bytes of each.
    most: (usize, usize),
    total: u64,
}

impl Bounded {
    /// Keeps this many bytes at most: one half from the start, the other from the end.
    pub(crate) fn both_ends(most: usize) -> Bounded {
        Bounded { head: Vec::new(), tail: VecDeque::new(), most: (most / 2, most / 2), total: 0 }
    }

    /// Keeps this many bytes at most, from the end.
    pub(crate) fn end(most: usize) -> Bounded {
        Bounded { head: Vec::new(), tail: VecDeque::new(), most: (0, most), total: 0 }
    }

    /// Adds output.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += u64::try_from(bytes.len()).unwrap_or(0);
        let (first, rest) = bytes.split_at(bytes.len().min(self.most.0 - self.head.len()));
        self.head.extend_from_slice(first);
        let rest = rest.get(rest.len().saturating_sub(self.most.1)..).unwrap_or_default();
        let surplus = (self.tail.len() + rest.len()).saturating_sub(self.most.1);
        self.tail.drain(..surplus);
        self.tail.extend(rest);
    }

    /// The number of bytes between start and end that are not kept.
    pub(crate) fn cut(&self) -> u64 {
        self.total - u64::try_from(self.head.len() + self.tail.len()).unwrap_or(self.total)
    }

    /// The output as plain text, which says what was cut.
    pub(crate) fn text(&self) -> String {
        let (one, other) = self.tail.as_slices();
        let tail = [one, other].concat();
        match self.cut() {
            0 => plain_text(&[self.head.as_slice(), &tail].concat()),
            cut if self.head.is_empty() => format!("[{cut} bytes cut]\n{}", plain_text(&tail)),
            cut => format!("{}\n[{cut} bytes cut]\n{}", plain_text(&self.head), plain_text(&tail)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn colours_titles_and_control_characters_are_left_out() {
        let vite = b"\x1b[32m\xe2\x9e\x9c\x1b[39m  \x1b[1mLocal\x1b[22m:   \x1b[36mhttp://localhost:\x1b[1m5173\x1b[22m/\x1b[39m\r\n";
        assert_eq!(plain_text(vite), "➜  Local:   http://localhost:5173/\n");
        assert_eq!(plain_text(b"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b\x1b(Bc\0\x08d\x1b"), "abcd");
        assert_eq!(plain_text(b"10%\r20%\rdone\n"), "10%\n20%\ndone\n");
        assert_eq!(plain_text(b"a\xff\xfeb"), "a\u{fffd}\u{fffd}b");
        assert_eq!(plain_text(b"\x1b[31\nnext"), "\nnext");
    }

    #[test]
    fn the_middle_of_a_long_line_is_cut_out() {
        let text = plain_text(format!("{}\nshort\n", "ä".repeat(5000)).as_bytes());
        let (line, rest) = text.split_once('\n').unwrap();
        assert_eq!(rest, "short\n");
        assert!(line.contains(" [3000 characters cut] ") && line.chars().count() < 2100);
    }

    #[test]
    fn bytes_end_between_characters() {
        let euro = "a€".as_bytes();
        assert_eq!([2, 3, 4].map(|end| whole_characters(&euro[..end])), [1, 1, 4]);
        assert_eq!(
            (whole_characters(b""), whole_characters(b"\xff"), whole_characters(b"\x80\x80")),
            (0, 1, 2)
        );
    }

    #[test]
    fn the_end_is_kept_and_the_cut_said() {
        let mut bounded = Bounded::end(4);
        bounded.push(b"abc");
        assert_eq!(bounded.text(), "abc");
        bounded.push(b"defgh");
        assert_eq!(bounded.text(), "[4 bytes cut]\nefgh");
    }

    proptest! {
        #[test]
        fn any_bytes_are_text_of_printable_characters(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let text = plain_text(&bytes);
            prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n' && c != '\t'));
            prop_assert!(whole_characters(&bytes) <= bytes.len());
        }

        #[test]
        fn start_and_end_are_kept(pieces in proptest::collection::vec(proptest::collection::vec(0x20_u8..0x7f, 0..40), 0..20)) {
            let all = pieces.concat();
            let mut bounded = Bounded::both_ends(64);
            for piece in &pieces {
                bounded.push(piece);
            }
            if all.len() <= 64 {
                prop_assert_eq!(bounded.text().into_bytes(), all);
            } else {
                let text = bounded.text();
                prop_assert!(text.as_bytes().starts_with(&all[..32]) && text.as_bytes().ends_with(&all[all.len() - 32..]));
                prop_assert_eq!(bounded.cut(), u64::try_from(all.len() - 64).unwrap());
            }
        }
    }
}
