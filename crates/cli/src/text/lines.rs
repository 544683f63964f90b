//! Lines that several verbs print in the same format.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Adds a message with the prefix `penfold: `.
pub(crate) fn say(text: &mut String, words: &str) {
    text.push_str("penfold: ");
    push(text, words);
    text.push('\n');
}

/// Adds text with control characters replaced and format characters escaped: any program can choose a process name.
pub(crate) fn push(text: &mut String, words: &str) {
    for character in words.chars() {
        if character.is_control() {
            text.push(char::REPLACEMENT_CHARACTER);
        } else if is_format(character) {
            text.extend(character.escape_unicode());
        } else {
            text.push(character);
        }
    }
}

/// Cuts text to this number of columns; the last character then shows that something is missing.
pub(crate) fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if text.width() <= width {
        return text.into();
    }
    let mut kept = String::new();
    let mut columns = 0;
    for character in text.chars() {
        columns += character.width().unwrap_or(0);
        if columns >= width {
            break;
        }
        kept.push(character);
    }
    kept.push('…');
    kept.into()
}

/// Whether a character is invisible and changes the display of the text beside it: general categories Cf, Zl and Zp of
/// [UAX #44](https://www.unicode.org/reports/tr44/), without the number signs of Cf, which are visible.
pub(crate) fn is_format(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{61c}' | '\u{70f}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{13430}'..='\u{1343f}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0001}'..='\u{e007f}')
}

/// Formats a number with its noun: `1 leak`, `2 leaks`.
pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
