//! `docs/session-commands.md` is generated from the table of the tests.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::table::{Case, TABLE};

const HEAD: &str = "\
# Commands of a session

What a session answers to a command, in order: some commands need the one before. The tests run each command on the
session host and through `POST /api/execute`. After each command the shell answers the next one. `scripts/test-full` runs
each a hundred times. This page is generated from the tests by `just session-commands`.

- `status` is that of the Cloudflare API. 410 is SESSION_TERMINATED: the shell has ended, and the next command gets a
  fresh one. Such an answer has the code, and no output.
- `code` is the exit code.
- `↵` is a newline, `␀` a NUL. `50000000 × x` is that many bytes.
- Standard error contains the text of the last column. An empty cell means no output.

| command | status | code | standard output | standard error |
|---|---|---|---|---|
";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/session-commands.md")
}

/// A cell with this text as code.
fn cell(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let shown = text.replace('\n', "↵").replace('\0', "␀").replace('|', "\\|");
    // Code that has a space on both sides loses these.
    let pad = if shown.starts_with(' ') && shown.ends_with(' ') { " " } else { "" };
    format!("`{pad}{shown}{pad}`")
}

fn row(case: &Case) -> String {
    let status = if case.ends_shell { 410 } else { 200 };
    let out = match case.out {
        (text, 1) => cell(text),
        (text, count) => cell(&format!("{count} × {text}")),
    };
    format!("| {} | {status} | {} | {out} | {} |\n", cell(case.text), case.code, cell(case.err))
}

fn page() -> String {
    TABLE.iter().fold(HEAD.to_owned(), |mut page, case| {
        let _ = write!(page, "{}", row(case));
        page
    })
}

/// spec: 13.15
#[test]
fn the_committed_table_is_that_of_the_tests() {
    let committed = std::fs::read_to_string(path()).unwrap_or_default();
    assert!(committed == page(), "`just session-commands` writes docs/session-commands.md");
}

/// Writes the page; `just session-commands` runs it.
#[test]
#[ignore = "changes a file of the repository"]
fn write_the_table() {
    std::fs::write(path(), page()).unwrap();
}
