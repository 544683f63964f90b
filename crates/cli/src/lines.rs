//! Lines of talk and of data that several verbs write in the same way.

use serde::Serialize;

use crate::exit_codes;
use crate::failure::Failure;
use crate::output;

/// Adds a line of talk.
pub(crate) fn say(text: &mut String, words: &str) {
    text.push_str("penfold: ");
    push(text, words);
    text.push('\n');
}

/// Adds text with control characters replaced: names of processes are chosen by strangers.
pub(crate) fn push(text: &mut String, words: &str) {
    text.extend(words.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }));
}

/// `one thing`, `2 things`.
pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Writes one JSON value and a line feed to standard output.
pub(crate) fn json(value: &impl Serialize, exit: u8) -> Result<(), Failure> {
    let mut text = serde_json::to_vec(value).map_err(|error| {
        Failure::new(exit_codes::FAILURE, "cannot write the result as JSON").because(error)
    })?;
    text.push(b'\n');
    output::data(&text, exit)
}
