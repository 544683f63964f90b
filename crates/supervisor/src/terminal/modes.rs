//! Tracks the modes that programs set on a terminal and that must survive a change of viewers.
//!
//! A viewer that attaches while an editor runs needs the modes that the editor set before. When the viewer leaves, its
//! own terminal needs the usual modes again. Colours and contents are not tracked: programs redraw them.
//!
//! The numbers are those of xterm: <https://invisible-island.net/xterm/ctlseqs/ctlseqs.html>. The grammar is that of
//! ECMA-48, without 8-bit control characters, which are parts of characters in UTF-8.

/// The longest parameters of a control sequence that are parsed.
const MAX_PARAMETER_BYTES: usize = 64;

/// The modes of a terminal, parsed from its output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Modes {
    place: ParserState,
    /// The parameters of the current control sequence.
    parameters: Vec<u8>,
    set: ModeSet,
}

/// The parser's position in the grammar.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ParserState {
    #[default]
    Text,
    /// After ESC.
    Escape,
    /// After ESC and intermediate bytes: `ESC ( B`.
    Intermediate,
    /// After `ESC [`.
    Control,
    /// In a title or another string of an operating system command, which BEL ends as well.
    Command,
    /// In a string that `ESC \` ends.
    String,
}

/// The differences from a newly opened terminal.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the terminal's, apart from the others"
)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ModeSet {
    /// The private mode 47, 1047 or 1049.
    alternate_screen: Option<u16>,
    /// The mouse reporting mode: 9, 1000, 1001, 1002 or 1003.
    mouse: Option<u16>,
    /// The encoding of mouse reports: 1005, 1006, 1015 or 1016.
    mouse_form: Option<u16>,
    cursor_keys: bool,
    keypad: bool,
    bracketed_paste: bool,
    focus: bool,
    hidden_cursor: bool,
}

impl Modes {
    /// Parses output of the terminal. True if a mode has changed.
    pub fn read(&mut self, written: &[u8]) -> bool {
        let before = self.set;
        for &byte in written {
            self.read_byte(byte);
        }
        self.set != before
    }

    fn read_byte(&mut self, byte: u8) {
        self.place = match (self.place, byte) {
            // CAN and SUB abort a sequence; ESC starts a new one.
            (_, 0x18 | 0x1a) | (ParserState::Command, 0x07) => ParserState::Text,
            (_, 0x1b) => ParserState::Escape,
            // Other control characters act at once, also within a sequence.
            (place @ (ParserState::Text | ParserState::Command | ParserState::String), _)
            | (place, 0x00..=0x1f | 0x7f..) => place,
            (ParserState::Escape | ParserState::Intermediate, 0x20..=0x2f) => ParserState::Intermediate,
            (ParserState::Intermediate, _) => ParserState::Text,
            (ParserState::Escape, b'[') => {
                self.parameters.clear();
                ParserState::Control
            }
            (ParserState::Escape, b']') => ParserState::Command,
            (ParserState::Escape, b'P' | b'X' | b'^' | b'_') => ParserState::String,
            (ParserState::Escape, last) => {
                self.escape(last);
                ParserState::Text
            }
            (ParserState::Control, 0x20..=0x3f) => {
                if self.parameters.len() <= MAX_PARAMETER_BYTES {
                    self.parameters.push(byte);
                }
                ParserState::Control
            }
            (ParserState::Control, last) => {
                self.control(last);
                ParserState::Text
            }
        };
    }

    fn escape(&mut self, last: u8) {
        match last {
            b'=' => self.set.keypad = true,
            b'>' => self.set.keypad = false,
            b'c' => self.set = ModeSet::default(),
            _ => {}
        }
    }

    fn control(&mut self, last: u8) {
        let parameters = std::mem::take(&mut self.parameters);
        match (parameters.as_slice(), last) {
            (parameters, _) if parameters.len() > MAX_PARAMETER_BYTES => {}
            ([b'?', numbers @ ..], b'h' | b'l') => {
                let numbers = numbers.split(|&byte| byte == b';');
                for number in numbers.filter_map(|number| str::from_utf8(number).ok()?.parse().ok()) {
                    self.set.change(number, last == b'h');
                }
            }
            // A soft reset (DECSTR).
            (b"!", b'p') => {
                self.set = ModeSet { cursor_keys: false, keypad: false, hidden_cursor: false, ..self.set };
            }
            _ => {}
        }
        self.parameters = parameters;
        self.parameters.clear();
    }

    /// Returns the sequences that put a newly opened terminal into these modes.
    pub fn replay(&self) -> Vec<u8> {
        let set = self.set;
        let numbers = set.alternate_screen.into_iter().chain(set.others());
        let mut written: Vec<u8> =
            numbers.flat_map(|number| format!("\x1b[?{number}h").into_bytes()).collect();
        if set.keypad {
            written.extend(b"\x1b=");
        }
        if set.hidden_cursor {
            written.extend(b"\x1b[?25l");
        }
        written
    }

    /// Returns the sequences that put a terminal in these modes back into the usual ones.
    pub fn reset(&self) -> Vec<u8> {
        let set = self.set;
        let mut written = Vec::new();
        if set.keypad {
            written.extend(b"\x1b>");
        }
        if set.hidden_cursor {
            written.extend(b"\x1b[?25h");
        }
        // The screen comes last: modes that a terminal keeps per screen are reset on the screen where they were set.
        let numbers = set.others().chain(set.alternate_screen);
        written.extend(numbers.flat_map(|number| format!("\x1b[?{number}l").into_bytes()));
        written
    }
}

impl ModeSet {
    fn change(&mut self, number: u16, on: bool) {
        match number {
            1 => self.cursor_keys = on,
            25 => self.hidden_cursor = !on,
            66 => self.keypad = on,
            1004 => self.focus = on,
            2004 => self.bracketed_paste = on,
            47 | 1047 | 1049 => self.alternate_screen = on.then_some(number),
            // Only one mode is active; switching any of them off ends mouse reports.
            9 | 1000..=1003 => self.mouse = on.then_some(number),
            1005 | 1006 | 1015 | 1016 => self.mouse_form = on.then_some(number),
            _ => {}
        }
    }

    /// Returns the numbers of all modes but the screen.
    fn others(self) -> impl Iterator<Item = u16> {
        let switched = [(self.cursor_keys, 1), (self.focus, 1004), (self.bracketed_paste, 2004)];
        let switched = switched.into_iter().filter_map(|(on, number)| on.then_some(number));
        switched.chain(self.mouse_form).chain(self.mouse)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn after(written: &[u8]) -> Modes {
        let mut modes = Modes::default();
        modes.read(written);
        modes
    }

    fn replayed(written: &str) -> String {
        String::from_utf8(after(written.as_bytes()).replay()).unwrap()
    }

    #[test]
    fn an_editor_s_modes_are_replayed_and_reset() {
        let modes = after(b"\x1b[?1049h\x1b[?1h\x1b=\x1b[?2004h\x1b[?1002;1006h\x1b[?25lText");
        let replay = "\x1b[?1049h\x1b[?1h\x1b[?2004h\x1b[?1006h\x1b[?1002h\x1b=\x1b[?25l";
        assert_eq!(String::from_utf8(modes.replay()).unwrap(), replay);
        let reset = "\x1b>\x1b[?25h\x1b[?1l\x1b[?2004l\x1b[?1006l\x1b[?1002l\x1b[?1049l";
        assert_eq!(String::from_utf8(modes.reset()).unwrap(), reset);
    }

    #[test]
    fn what_is_switched_off_is_not_replayed() {
        for written in [
            "\x1b[?1049h\x1b[?1049l",
            "\x1b[?1003h\x1b[?1000l",
            "\x1b[?2004;1;1004;1006h\x1b[?1;1006;2004;1004l",
            "\x1b[?25l\x1b[?25h\x1b=\x1b>",
            "\x1b[?1049;1000h\x1b=\x1bc",
            "\x1b[?1h\x1b[?25l\x1b=\x1b[!p",
        ] {
            assert_eq!(replayed(written), "", "{written:?}");
            assert!(after(written.as_bytes()).reset().is_empty());
        }
    }

    #[test]
    fn only_control_sequences_are_read() {
        for written in [
            "[?1049h",
            "\x1b(=",
            "\x1b[1049h",
            "\x1b]0;\x1b\\[?1049h",
            "\x1b]0;=[?1h\x07",
            "\x1bP\x07[?1h",
            "\x1b[?1\x18h",
            "\x1b[?99999h",
        ] {
            assert_eq!(replayed(written), "", "{written:?}");
        }
        let long = format!("\x1b[?{}1h", "0;".repeat(MAX_PARAMETER_BYTES));
        assert_eq!(replayed(&long), "");
        // A control character within a sequence acts, and the sequence continues.
        assert_eq!(replayed("\x1b[?\r1h"), "\x1b[?1h");
        assert_eq!(replayed("\x1b]0;title\x1b\\\x1b[?1h\x1b[31m"), "\x1b[?1h");
    }

    proptest! {
        #[test]
        fn cuts_in_the_output_change_nothing_and_a_replay_gives_the_same_modes(
            pieces in prop::collection::vec(
                prop_oneof![
                    2 => prop::collection::vec(any::<u8>(), 0..8),
                    3 => prop::sample::select(vec![
                        "\x1b[?1049h", "\x1b[?1049l", "\x1b[?1h", "\x1b=", "\x1b>", "\x1b[?1002;1006h", "\x1b[?1000l",
                        "\x1b[?25l", "\x1b[?25h", "\x1b[?2004h", "\x1b[", "\x1b", "\x1b]", "\x07", "\x1bc", "\x1b[!p", "?47h",
                    ]).prop_map(|text| text.as_bytes().to_vec()),
                ],
                0..40,
            ),
        ) {
            let whole = after(&pieces.concat());
            let mut cut = Modes::default();
            for piece in &pieces {
                cut.read(piece);
            }
            prop_assert_eq!(&cut, &whole);
            prop_assert_eq!(after(&whole.replay()).set, whole.set);
            let mut reset = after(&whole.replay());
            reset.read(&whole.reset());
            prop_assert_eq!(reset.set, ModeSet::default());
        }
    }
}
