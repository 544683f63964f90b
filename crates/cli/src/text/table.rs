//! Tables: aligned columns, as wide as the terminal.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthStr as _;

use crate::text::lines::cut;

/// The blanks between two columns.
const GAP: usize = 3;
/// The least width of the last column. Others make room for it.
const LEAST: usize = 16;
/// The width to which the column that may be cut is cut at most.
const CUT: usize = 12;

/// The columns that make room in a narrow terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Narrow<'a> {
    /// The columns that are left out, one after the other.
    pub(crate) left_out: &'a [&'a str],
    /// The column that is cut after that.
    pub(crate) cut: &'a str,
}

/// Aligns columns.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    painted(rows, |_, _| None)
}

/// Aligns columns; `colour` gives the colour of a cell by its column and its text, except for the headings.
pub(crate) fn painted(rows: &[Vec<String>], colour: impl Fn(usize, &str) -> Option<u8>) -> String {
    let widths = widths(rows);
    let mut text = String::new();
    for (row, cells) in rows.iter().enumerate() {
        let mut line = String::new();
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            match colour(column, cell).filter(|_| row > 0) {
                // Writing to a String cannot fail.
                Some(code) => drop(write!(line, "\u{1b}[{code}m{cell}\u{1b}[0m")),
                None => line.push_str(cell),
            }
            line.extend(std::iter::repeat_n(' ', width - cell.width() + GAP));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Makes a table fit into a width. The last column gets what the others leave; the first row has the headings.
pub(crate) fn fit(rows: &mut [Vec<String>], width: usize, narrow: Narrow<'_>) {
    let room = |rows: &[Vec<String>]| {
        let widths = widths(rows);
        let others = widths.get(..widths.len().saturating_sub(1)).unwrap_or_default();
        width.saturating_sub(others.iter().map(|width| width + GAP).sum())
    };
    let at = |rows: &[Vec<String>], title: &str| rows.first()?.iter().position(|heading| heading == title);
    for title in narrow.left_out {
        if room(rows) >= LEAST {
            break;
        }
        if let Some(column) = at(rows, title) {
            rows.iter_mut().filter(|row| column < row.len()).for_each(|row| drop(row.remove(column)));
        }
    }
    if room(rows) < LEAST
        && let Some(column) = at(rows, narrow.cut)
    {
        rows.iter_mut()
            .filter_map(|row| row.get_mut(column))
            .for_each(|cell| *cell = cut(cell, CUT).into_owned());
    }
    let room = room(rows).max(1);
    rows.iter_mut().filter_map(|row| row.last_mut()).for_each(|cell| *cell = cut(cell, room).into_owned());
}

fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max();
    (0..columns).map(|column| width(column).unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Vec<String>> {
        let rows = [
            ["ID", "NAME", "STATUS", "STARTED", "COMMAND"],
            [
                "0a1b2c3d4e5f",
                "a-name-that-is-long",
                "running",
                "12m ago",
                "node server.js --port 8080 --watch",
            ],
            ["5f4e3d2c1b0a", "-", "exited (3) 2m ago", "1h ago", "日本語日本語日本語日本語"],
        ];
        rows.map(|row| row.map(str::to_owned).to_vec()).to_vec()
    }

    fn fitted(width: usize) -> String {
        let mut rows = rows();
        fit(&mut rows, width, Narrow { left_out: &["STARTED"], cut: "NAME" });
        aligned(&rows)
    }

    #[test]
    fn the_last_column_gets_what_the_others_leave() {
        for width in [60, 80, 100] {
            let text = fitted(width);
            assert!(text.lines().all(|line| line.width() <= width), "{width}:\n{text}");
            assert_eq!(text.contains("STARTED"), width > 80, "{text}");
        }
        assert_eq!(fitted(160), aligned(&rows()));
        assert!(fitted(60).contains("a-name-that…   running"), "{}", fitted(60));
    }

    #[test]
    fn colour_changes_no_width() {
        let plain = aligned(&rows());
        let painted = painted(&rows(), |column, text| (column == 2 && text == "running").then_some(32));
        assert_eq!(painted.matches("\u{1b}[32mrunning\u{1b}[0m").count(), 1);
        assert_eq!(painted.replace("\u{1b}[32m", "").replace("\u{1b}[0m", ""), plain);
    }
}
