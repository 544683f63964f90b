//! Output that was meant for a terminal, as plain lines.

use crate::text::template;

/// The longest line that is kept.
const LONGEST: usize = 1000;

/// The lines of an output, without the sequences that colour text or move the cursor. Of a line that was written over with
/// carriage returns, the last text counts.
pub(crate) fn lines(output: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(output).lines().map(line).collect()
}

fn line(written: &str) -> String {
    let text = without_sequences(written.get(..floor(written)).unwrap_or_default());
    let last = text.rsplit('\r').find(|part| !part.trim().is_empty()).unwrap_or_default();
    template::printable(&last.replace('\t', "    "))
}

fn floor(text: &str) -> usize {
    (0..=LONGEST.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0)
}

/// Leaves out escape sequences: ECMA-48, and the strings of xterm.
fn without_sequences(text: &str) -> String {
    const ESCAPE: char = '\u{1b}';
    let mut plain = String::new();
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        if character != ESCAPE {
            plain.push(character);
            continue;
        }
        match rest.next() {
            // Parameters, then a final byte.
            Some('[') => while rest.next().is_some_and(|one| !('@'..='~').contains(&one)) {},
            // A string up to BEL, or up to the `\` of its terminator.
            Some(']' | 'P' | '^' | '_' | 'X') => {
                while rest.next().is_some_and(|one| !['\u{7}', '\\'].contains(&one)) {}
            }
            // A sequence of two or three characters, such as the choice of a character set.
            Some(' '..='/') => drop(rest.next()),
            _ => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_progress_bars_become_plain_text() {
        let output =
            b"\x1b[1;32mready\x1b[0m on\t:80\n10%\r20%\r\x1b]0;title\x07\x1b(Bdone\r\n\x1b[2J\x07end\x9b\n";
        assert_eq!(lines(output), ["ready on    :80", "done", "\u{fffd}end\u{fffd}"]);
    }

    #[test]
    fn a_sequence_without_an_end_and_a_line_without_an_end_are_cut() {
        assert_eq!(lines(b"a\x1b[31"), ["a"]);
        assert_eq!(lines(&vec![b'x'; 100_000])[0].len(), LONGEST);
        assert_eq!(lines("\u{202e}evil".as_bytes()), ["\\u{202e}evil"]);
    }
}
