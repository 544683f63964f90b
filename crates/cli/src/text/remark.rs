//! Remarks about gaps in output.

use super::lines;
use crate::output;

/// A number of bytes, in words.
pub(crate) fn bytes(number: u64) -> String {
    if number == 1 { "1 byte".to_owned() } else { format!("{number} bytes") }
}

/// Prints a remark.
pub(crate) fn remark(words: &str) {
    let mut text = String::new();
    lines::say(&mut text, words);
    output::message(&text);
}
