//! Tables and verdicts as Markdown.

use std::fmt::{Display, Write};

/// A table; the first column is text, the others are numbers.
#[derive(Debug)]
pub(crate) struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<'h>(header: impl IntoIterator<Item = &'h str>) -> Table {
        Table { header: header.into_iter().map(str::to_owned).collect(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Returns the table with aligned columns, for readers of the plain text.
    pub(crate) fn markdown(&self) -> String {
        let width = |column: usize| {
            let cells = std::iter::once(&self.header).chain(&self.rows);
            cells.filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0).max(3)
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let line = |cells: &[String]| {
            let cells = cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
                0 => format!(" {cell:<width$} |"),
                _ => format!(" {cell:>width$} |"),
            });
            format!("|{}\n", cells.collect::<String>())
        };
        let rules = widths.iter().enumerate().map(|(column, width)| {
            let end = if column == 0 { '-' } else { ':' };
            format!("{}{end}|", "-".repeat(width + 1))
        });
        let mut text = format!("{}|{}\n", line(&self.header), rules.collect::<String>());
        text.extend(self.rows.iter().map(|row| line(row)));
        text
    }
}

/// A ratio as a cell: `1.23 ×`.
pub(crate) fn ratio(times: Option<f64>) -> String {
    times.map_or_else(|| "–".to_owned(), |times| format!("{times:.2} ×"))
}

/// Adds a paragraph about a missing measurement and its reason.
pub(crate) fn unmeasured(text: &mut String, what: impl Display, reason: impl Display) {
    // A write to a string cannot fail.
    let _ = write!(text, "\nNot measured: {what}: {reason}\n");
}

/// A line that says whether a limit is kept; `None` stands for a missing measurement.
pub(crate) fn verdict(what: &str, unit: &str, limit: f64, got: Option<f64>) -> String {
    let digits = if limit > 0.0 && limit < 10.0 { 2 } else { 0 };
    match got {
        None => format!("- {what}: at most {limit}{unit}; not measured\n"),
        Some(got) => {
            let word = if got <= limit { "kept" } else { "**missed**" };
            format!("- {what}: at most {limit}{unit}; {got:.digits$}{unit}, {word}\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_in_line() {
        let mut table = Table::new(["what", "ms"]);
        table.row(["a".to_owned(), "1234.5".to_owned()]);
        let expected = "| what |     ms |\n|------|-------:|\n| a    | 1234.5 |\n";
        assert_eq!(table.markdown(), expected);
    }

    #[test]
    fn a_limit_is_kept_missed_or_not_measured() {
        assert!(verdict("x", " ms", 1.3, Some(1.3)).ends_with("1.30 ms, kept\n"));
        assert!(verdict("x", "", 1.3, Some(1.31)).ends_with("**missed**\n"));
        assert!(verdict("x", "", 1.3, None).ends_with("not measured\n"));
    }
}
