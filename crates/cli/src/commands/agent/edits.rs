//! Changes of a text of JSON at places, so that everything else stays as it is.

use std::ops::Range;

use jsonc_parser::ast::{Array, Object, ObjectProp, Value};
use jsonc_parser::common::Ranged;
use jsonc_parser::tokens::Token;
use jsonc_parser::{Scanner, ScannerOptions};

/// As of JSON with comments, which the file was found to be.
const SCANNER: ScannerOptions = ScannerOptions {
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// Changes of one text. They do not overlap.
pub(super) struct Edits<'t> {
    text: &'t str,
    list: Vec<(Range<usize>, String)>,
}

impl<'t> Edits<'t> {
    /// Makes no change yet.
    pub(super) fn of(text: &'t str) -> Edits<'t> {
        Edits { text, list: Vec::new() }
    }

    /// Puts a text in the place of another.
    pub(super) fn replace(&mut self, range: Range<usize>, with: impl Into<String>) {
        self.list.push((range, with.into()));
    }

    /// Puts literals in front of the elements of a list, in the layout of the list.
    pub(super) fn prepend(&mut self, list: &Array<'_>, literals: &[String]) {
        let Some(first) = list.elements.first().map(Ranged::start) else {
            // The space after the last one shows that the list was there before.
            let place = list.start() + 1;
            return self.replace(place..place, literals.join(", ") + " ");
        };
        let gap = self.gap(first);
        let gap = if gap.contains('\n') { gap } else { " " };
        let separator = format!(",{gap}");
        let text = literals.join(&separator) + &separator;
        self.replace(first..first, text);
    }

    /// Removes the first elements of a list.
    pub(super) fn remove_first(&mut self, list: &Array<'_>, count: usize) {
        match (list.elements.first(), list.elements.get(count), list.elements.last()) {
            (Some(first), Some(next), _) => self.cut(first.start()..next.start()),
            (Some(first), None, Some(final_one)) => {
                let end = self.after_comma(final_one.end()..list.end());
                let has_space = self.at(end..list.end()).starts_with(' ');
                self.cut(first.start()..end + usize::from(has_space));
            }
            _ => {}
        }
    }

    /// Adds a property after another one, in the layout of that one.
    pub(super) fn add_after(&mut self, property: &ObjectProp<'_>, name: &str, value: &str) {
        let gap = self.gap(property.start());
        let gap = if gap.contains('\n') { gap } else { " " };
        self.replace(property.end()..property.end(), format!(",{gap}{}: {value}", quoted(name)));
    }

    /// Adds the first property of an empty object.
    pub(super) fn add_first(&mut self, object: &Object<'_>, text: &str) {
        let place = object.start() + 1;
        self.replace(place..place, text);
    }

    /// Removes a property, with the comma before or after it.
    pub(super) fn remove(&mut self, object: &Object<'_>, index: usize) {
        let Some(property) = object.properties.get(index) else { return };
        let previous = index.checked_sub(1).and_then(|index| object.properties.get(index));
        match (previous, object.properties.get(index + 1)) {
            (Some(previous), _) => self.cut(previous.end()..property.end()),
            (None, Some(next)) => self.cut(property.start()..next.start()),
            (None, None) => {
                let end = self.after_comma(property.end()..object.end());
                let start = property.start() - self.gap(property.start()).len();
                if start != object.start() + 1 {
                    return self.cut(property.start()..end);
                }
                let rest = self.at(end..object.end());
                let space = ["\r\n", "\n", " "].into_iter().find(|space| rest.starts_with(space));
                self.cut(start..end + space.map_or(0, str::len));
            }
        }
    }

    /// Removes a part that begins and ends between words of JSON. Its comments stay.
    pub(super) fn cut(&mut self, part: Range<usize>) {
        let comments = self.comments(part.clone());
        self.replace(part, comments);
    }

    /// The comments in a part, each with the white space before it.
    fn comments(&self, part: Range<usize>) -> String {
        let (text, after) = (self.at(part.clone()), self.at(part.end..self.text.len()));
        let mut scanner = Scanner::new(text, &SCANNER);
        let (mut kept, mut ends_line) = (String::new(), false);
        while let Ok(Some(token)) = scanner.scan() {
            if let Token::CommentLine(_) | Token::CommentBlock(_) = token {
                let before = text.get(..scanner.token_start()).unwrap_or_default();
                kept.push_str(before.get(before.trim_end().len()..).unwrap_or_default());
                kept.push_str(text.get(scanner.token_start()..scanner.token_end()).unwrap_or_default());
                ends_line = matches!(token, Token::CommentLine(_));
            }
        }
        if kept.is_empty() {
            return kept;
        }
        let gap = text.get(text.trim_end().len()..).unwrap_or_default();
        kept.push_str(gap);
        if ends_line && !gap.contains('\n') && !after.trim_start_matches('\r').starts_with('\n') {
            kept.push('\n');
        }
        kept
    }

    /// Returns the place after the comma in a part, if there is one, else the begin of the part.
    fn after_comma(&self, part: Range<usize>) -> usize {
        let mut scanner = Scanner::new(self.at(part.clone()), &SCANNER);
        while let Ok(Some(token)) = scanner.scan() {
            match token {
                Token::Comma => return part.start + scanner.token_end(),
                Token::CommentLine(_) | Token::CommentBlock(_) => {}
                _ => break,
            }
        }
        part.start
    }

    /// The white space before a place.
    pub(super) fn gap(&self, place: usize) -> &'t str {
        let before = self.text.get(..place).unwrap_or_default();
        before.get(before.trim_end().len()..).unwrap_or_default()
    }

    /// The text at a place.
    pub(super) fn at(&self, range: Range<usize>) -> &'t str {
        self.text.get(range).unwrap_or_default()
    }

    /// The text with all changes.
    pub(super) fn applied(mut self) -> String {
        self.list.sort_by_key(|(range, _)| range.start);
        let (mut text, mut done) = (String::new(), 0);
        for (range, with) in &self.list {
            text.push_str(self.at(done..range.start));
            text.push_str(with);
            done = range.end;
        }
        text.push_str(self.at(done..self.text.len()));
        text
    }
}

/// A text as a literal of JSON.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The text of a value, if it is one.
pub(super) fn text_of<'v>(value: &'v Value<'_>) -> Option<&'v str> {
    value.as_string_lit().map(|literal| literal.value.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_apply_in_the_order_of_the_text() {
        let mut edits = Edits::of("a é c");
        edits.replace(5..6, "d");
        edits.replace(0..1, "b");
        edits.replace(2..2, "x");
        assert_eq!(edits.applied(), "b xé d");
    }
}
