//! The one shape of a failure: a sentence, its causes, a hint, an exit code.

use std::error::Error;
use std::fmt::Write as _;

use crate::output;
use crate::text::lines;

/// Why a verb did not do what it was asked, ready to be shown.
///
/// Printed as `penfold: <sentence>: <cause>: <cause>`, then `hint: <text>`, each on one line.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: u8,
    sentence: String,
    cause: Option<Box<dyn Error>>,
    hint: Option<String>,
}

impl Failure {
    /// A failure with its exit code and a lower-case sentence without a full stop.
    pub(crate) fn new(exit: u8, sentence: impl Into<String>) -> Failure {
        Failure { exit, sentence: sentence.into(), cause: None, hint: None }
    }

    /// The same with the code of a verb that passes on codes of commands, which the low ones belong to.
    #[must_use]
    pub(crate) fn with_exit(mut self, exit: u8) -> Failure {
        self.exit = exit;
        self
    }

    /// Adds the cause; its own sources are shown after it.
    #[must_use]
    pub(crate) fn because(mut self, cause: impl Into<Box<dyn Error>>) -> Failure {
        self.cause = Some(cause.into());
        self
    }

    /// Adds what the user can do; a command that helps, in backticks.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// The code that the process ends with.
    pub(crate) fn exit(&self) -> u8 {
        self.exit
    }

    /// Writes the failure to standard error and returns its exit code.
    ///
    /// A standard error that cannot be written to changes nothing: the exit code still tells.
    pub(crate) fn report(&self, coloured: bool) -> u8 {
        output::talk(&self.render(coloured));
        self.exit()
    }

    fn render(&self, coloured: bool) -> String {
        let mut text = String::from("penfold: ");
        push_printable(&mut text, &self.sentence);
        let mut said = self.sentence.clone();
        let mut next: Option<&(dyn Error + 'static)> = self.cause.as_deref();
        while let Some(cause) = next {
            let words = cause.to_string();
            // Transparent wrappers say what their source says; once is enough.
            if words != said {
                text.push_str(": ");
                push_printable(&mut text, &words);
                said = words;
            }
            next = cause.source();
        }
        text.push('\n');
        if let Some(hint) = &self.hint {
            text.push_str(if coloured { "\u{1b}[36mhint:\u{1b}[0m " } else { "hint: " });
            push_printable(&mut text, hint);
            text.push('\n');
        }
        text
    }
}

/// Appends text with control and format characters escaped: arguments of strangers must not move a terminal's cursor, and
/// a sentence stays on its line.
fn push_printable(into: &mut String, text: &str) {
    for character in text.chars() {
        if character.is_control() || lines::is_format(character) {
            // Writing to a String cannot fail.
            let _ = write!(into, "{}", character.escape_default());
        } else {
            into.push(character);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit_codes;

    #[derive(Debug)]
    struct Wrapped(std::io::Error);

    impl std::fmt::Display for Wrapped {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "cannot write `1` to `/x`")
        }
    }

    impl Error for Wrapped {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn sentence_causes_and_hint_have_one_line_each() {
        let cause = Wrapped(std::io::Error::from_raw_os_error(13));
        let failure = Failure::new(exit_codes::FAILURE, "cannot end `x`").because(cause).hint("try `y`");
        assert_eq!(
            failure.render(false),
            "penfold: cannot end `x`: cannot write `1` to `/x`: Permission denied (os error 13)\nhint: try `y`\n"
        );
    }

    #[test]
    fn a_cause_that_repeats_its_wrapper_is_said_once() {
        let failure = Failure::new(exit_codes::FAILURE, "same").because("same");
        assert_eq!(failure.render(false), "penfold: same\n");
    }

    #[test]
    fn control_characters_are_escaped() {
        let failure = Failure::new(exit_codes::FAILURE, "a\n\u{1b}[2Jb\u{202e}c");
        assert_eq!(failure.render(false), "penfold: a\\n\\u{1b}[2Jb\\u{202e}c\n");
    }
}
