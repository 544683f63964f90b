//! Annotations and the step summary of GitHub Actions.
//!
//! Workflow commands: <https://docs.github.com/actions/reference/workflow-commands-for-github-actions>

use std::fmt::Write as _;
use std::io::Write as _;

use penfold_state::DescribedProcess;

use super::report;
use crate::{output, variables};

/// GitHub shows ten annotations of a kind for a step.
const SHOWN: usize = 10;

/// Prints an annotation for each of the first leaks, and adds all to the summary of the step.
pub(super) fn annotate(leaks: &[DescribedProcess], fails: bool) {
    let kind = if fails { "error" } else { "warning" };
    let mut text = String::new();
    for leak in leaks.iter().take(SHOWN) {
        let title =
            leak.test.as_deref().map_or_else(|| "leaked process".to_owned(), |test| format!("{test} leaked"));
        let message = escape(&report::describe(leak).join("\n"), false);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "::{kind} title={}::{message}", escape(&title, true));
    }
    output::message(&text);
    let Some(path) = variables::get("GITHUB_STEP_SUMMARY".as_ref()).filter(|_| !leaks.is_empty()) else {
        return;
    };
    let written = std::fs::File::options()
        .append(true)
        .create(true)
        .open(path)
        .and_then(|mut file| file.write_all(table(leaks).as_bytes()));
    if let Err(error) = written {
        output::message(&format!("penfold: cannot write the summary of the step: {error}\n"));
    }
}

fn table(leaks: &[DescribedProcess]) -> String {
    let cell = |text: &str| {
        // Markdown in a cell would make links and images of a command line.
        text.chars().fold(String::new(), |mut cell, c| {
            match c {
                '\n' | '\r' => cell.push(' '),
                '&' | '<' | '>' | '|' | '[' | ']' | '!' | '`' | '*' | '_' | '\\' | '@' | '#' | '~' => {
                    let _ = write!(cell, "&#{};", u32::from(c));
                }
                c => cell.push(c),
            }
            cell
        })
    };
    let mut text =
        "### Processes that outlived the tests\n\n| process | test | ports |\n|---|---|---|\n".to_owned();
    for leak in leaks {
        let _ = writeln!(
            text,
            "| {} (pid {}) | {} | {} |",
            cell(&leak.command),
            leak.pid,
            cell(leak.test.as_deref().unwrap_or("unknown")),
            cell(&leak.ports.join(", "))
        );
    }
    text
}

/// Escapes the data, or a property, of a workflow command.
fn escape(text: &str, property: bool) -> String {
    let text = text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    if property { text.replace(':', "%3A").replace(',', "%2C") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_cannot_end_its_annotation_or_its_cell() {
        assert_eq!(escape("50%\n::error::x", false), "50%25%0A::error::x");
        assert_eq!(escape("a:b,c", true), "a%3Ab%2Cc");
        let leak = DescribedProcess { command: "a|b\n<i>".to_owned(), ..report::tests::leak() };
        assert!(table(&[leak]).ends_with("| a&#124;b &#60;i&#62; (pid 7) | unknown |  |\n"));
    }
}
