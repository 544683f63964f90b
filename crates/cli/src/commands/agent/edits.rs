//! Changes of a text of JSON at places, so that everything else stays as it is.

use std::ops::Range;

use jsonc_parser::ast::{Array, Object, ObjectProp, Value};
use jsonc_parser::common::Ranged;

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

    /// Puts texts in front of the elements of a list, in the layout of the list.
    pub(super) fn prepend<'w>(&mut self, list: &Array<'_>, words: impl Iterator<Item = &'w str>) {
        let words: Vec<String> = words.map(quoted).collect();
        let Some(first) = list.elements.first().map(Ranged::start) else {
            return self.replace(list.start()..list.end(), format!("[{}]", words.join(", ")));
        };
        let gap = self.gap(first);
        let gap = if gap.contains('\n') { gap } else { " " };
        let separator = format!(",{gap}");
        let text = words.join(&separator) + &separator;
        self.replace(first..first, text);
    }

    /// Removes the first elements of a list.
    pub(super) fn remove_first(&mut self, list: &Array<'_>, count: usize) {
        match (list.elements.first(), list.elements.get(count)) {
            (Some(first), Some(next)) => self.replace(first.start()..next.start(), ""),
            _ => self.replace(list.start()..list.end(), "[]"),
        }
    }

    /// Adds a property after another one, in the layout of that one.
    pub(super) fn add_after(&mut self, property: &ObjectProp<'_>, name: &str, value: &str) {
        let gap = self.gap(property.start());
        let gap = if gap.contains('\n') { gap } else { " " };
        self.replace(property.end()..property.end(), format!(",{gap}{}: {value}", quoted(name)));
    }

    /// Removes a property, with the comma before or after it.
    pub(super) fn remove(&mut self, object: &Object<'_>, index: usize) {
        let Some(property) = object.properties.get(index) else { return };
        let previous = index.checked_sub(1).and_then(|index| object.properties.get(index));
        match (previous, object.properties.get(index + 1)) {
            (Some(previous), _) => self.replace(previous.end()..property.end(), ""),
            (None, Some(next)) => self.replace(property.start()..next.start(), ""),
            (None, None) => self.replace(object.start()..object.end(), "{}"),
        }
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
