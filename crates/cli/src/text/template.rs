//! `--format`: replaces the field names of docker's templates, without functions. Tables and rounded times.

use std::fmt::Write as _;

use penfold_control::view::SandboxView;
use penfold_state::state::Status;
use penfold_state::{ExitStatus, cause_word};
use penfold_teardown::Cause;

use crate::text::lines;
use crate::text::table;
use crate::text::time::utc;
use crate::value::Invalid;

/// The status shown for a sandbox that a stop ended; its stored status is [`Status::Killed`].
pub(crate) const STOPPED: &str = "stopped";

/// The fields of a template: name, heading, value.
type Field = (&'static str, &'static str, fn(&SandboxView, u64) -> String);

const FIELDS: &[Field] = &[
    ("ID", "ID", |view, _| view.id.clone()),
    ("Name", "NAME", |view, _| name(view)),
    ("Names", "NAMES", |view, _| name(view)),
    ("Command", "COMMAND", |view, _| command(view)),
    ("State", "STATE", |view, _| view.status.to_string()),
    ("Status", "STATUS", status),
    ("RunningFor", "STARTED", |view, now| started(view, now)),
    ("CreatedAt", "CREATED AT", |view, _| view.started_at_ms.map_or_else(String::new, utc)),
    ("EndedAt", "ENDED AT", |view, _| view.ended_at_ms.map_or_else(String::new, utc)),
    ("ExpiresAt", "EXPIRES AT", |view, _| view.expires_at_ms.map_or_else(String::new, utc)),
    ("Labels", "LABELS", |view, _| labels(view)),
    ("Exit", "EXIT", |view, _| view.exit.map(|exit| exit.to_string()).unwrap_or_default()),
    ("Cause", "CAUSE", |view, _| view.cause.map(cause_word).unwrap_or_default()),
    ("Level", "LEVEL", |view, _| view.level.map(|level| level.to_string()).unwrap_or_default()),
    ("Leader", "LEADER", |view, _| pid(view.leader)),
    ("Owner", "OWNER", |view, _| pid(view.owner)),
    ("Cgroup", "CGROUP", |view, _| {
        view.leaf.as_ref().map_or_else(String::new, |leaf| leaf.display().to_string())
    }),
];

/// The value of `--format`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// `json`: an array.
    Json,
    /// `{{json .}}`: an object on each line.
    JsonLines,
    /// `table TEMPLATE`: columns with headings.
    Table(Template),
    /// A template: one line for each sandbox.
    Lines(Template),
}

/// Text with fields in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(usize),
}

/// Reads the value of `--format`.
pub(crate) fn format(given: &str) -> Result<Format, Invalid> {
    if given.trim() == "json" {
        return Ok(Format::Json);
    }
    if given.split_whitespace().collect::<String>() == "{{json.}}" {
        return Ok(Format::JsonLines);
    }
    match given.strip_prefix("table ") {
        Some(rest) => template(rest).map(Format::Table),
        None => template(given).map(Format::Lines),
    }
}

fn template(given: &str) -> Result<Template, Invalid> {
    const ACCEPTED: &str = "`json`, or text with {{.ID}} {{.Name}} {{.Names}} {{.Command}} {{.State}} {{.Status}} \
        {{.RunningFor}} {{.CreatedAt}} {{.EndedAt}} {{.ExpiresAt}} {{.Labels}} {{.Exit}} {{.Cause}} {{.Level}} \
        {{.Leader}} {{.Owner}} {{.Cgroup}}";
    let invalid = |problem| Invalid::new(given, problem, ACCEPTED);
    let mut parts = Vec::new();
    let mut rest = given;
    while let Some((text, after)) = rest.split_once("{{") {
        let (field, after) = after.split_once("}}").ok_or_else(|| invalid("has a field without an end"))?;
        let wanted = field.trim().strip_prefix('.').ok_or_else(|| invalid("has an unknown field"))?;
        let index = FIELDS.iter().position(|(name, ..)| *name == wanted);
        parts.push(Part::Text(unescaped(text)));
        parts.push(Part::Field(index.ok_or_else(|| invalid("has an unknown field"))?));
        rest = after;
    }
    parts.push(Part::Text(unescaped(rest)));
    parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
    Ok(Template { parts })
}

/// Replaces typed `\t` and `\n`: a shell does not replace them.
fn unescaped(text: &str) -> String {
    text.replace("\\t", "\t").replace("\\n", "\n")
}

impl Template {
    /// Fills in the template for one sandbox; adds a line feed.
    pub(crate) fn line(&self, view: &SandboxView, now: u64) -> String {
        let mut text = self.fill(|(_, _, value)| printable(&value(view, now)));
        text.push('\n');
        text
    }

    /// The table of several sandboxes.
    pub(crate) fn table<'a>(&self, views: impl Iterator<Item = &'a SandboxView>, now: u64) -> String {
        let split = |line: String| line.split('\t').map(|cell| cell.trim().to_owned()).collect();
        let mut rows: Vec<Vec<String>> = vec![split(self.fill(|(_, heading, _)| (*heading).to_owned()))];
        rows.extend(views.map(|view| split(self.fill(|(_, _, value)| printable(&value(view, now))))));
        table::aligned(&rows)
    }

    fn fill(&self, value: impl Fn(&Field) -> String) -> String {
        self.parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.clone(),
                Part::Field(index) => FIELDS.get(*index).map(&value).unwrap_or_default(),
            })
            .collect()
    }
}

/// Escapes text of other programs for a table cell: one line that cannot move the cursor.
pub(crate) fn printable(text: &str) -> String {
    let mut clean = String::new();
    lines::push(&mut clean, text);
    clean
}

pub(crate) fn name(view: &SandboxView) -> String {
    view.name.clone().unwrap_or_else(|| "-".to_owned())
}

/// The command and its arguments, separated by blanks; `?` if the record does not have them.
pub(crate) fn command(view: &SandboxView) -> String {
    if view.command.is_empty() { "?".to_owned() } else { view.command_line() }
}

pub(crate) fn labels(view: &SandboxView) -> String {
    view.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

fn pid(process: Option<penfold_process::ProcessId>) -> String {
    process.map(|process| process.pid.as_raw_pid().to_string()).unwrap_or_default()
}

/// Whether the exit status of a stopped command shows that SIGKILL was not needed.
pub(crate) fn is_polite(exit: Option<ExitStatus>) -> bool {
    exit.is_some_and(|exit| exit != ExitStatus::Signal(rustix::process::Signal::KILL.as_raw()))
}

/// Whether a stop ended the sandbox without SIGKILL to its command.
pub(crate) fn is_stopped(view: &SandboxView) -> bool {
    view.status == Status::Killed && view.cause == Some(Cause::Stop) && is_polite(view.exit)
}

/// The status with details: `exited (3) 2m ago`, `waiting (exit 3, next start in 6s) (4 restarts)`, `stopped (0) 3m ago`, `killed (timeout, 143) 1h ago`.
pub(crate) fn status(view: &SandboxView, now: u64) -> String {
    let word = view.status;
    let code = || view.exit.map(|exit| exit.shell_code().to_string());
    let detail = match (word, view.cause) {
        (Status::Exited, _) | (Status::Killed, Some(Cause::Stop | Cause::Kill)) => code(),
        (Status::Waiting, _) => {
            let next = view
                .next_start_at_ms
                .map(|at| format!("next start in {}", span(at.saturating_sub(now).div_ceil(1000))));
            let both: Vec<String> =
                code().map(|code| format!("exit {code}")).into_iter().chain(next).collect();
            Some(both.join(", ")).filter(|both| !both.is_empty())
        }
        (Status::Killed, _) => {
            let both: Vec<String> = view.cause.map(cause_word).into_iter().chain(code()).collect();
            Some(both.join(", ")).filter(|both| !both.is_empty())
        }
        (Status::Failed | Status::Stopping, _) => view.cause.map(cause_word),
        _ => None,
    };
    let mut text = if is_stopped(view) { STOPPED.to_owned() } else { word.to_string() };
    if let Some(detail) = detail {
        let _ = write!(text, " ({detail})");
    }
    if view.elsewhere {
        text.push_str(" (elsewhere)");
    }
    match view.restarts {
        0 => {}
        1 => text.push_str(" (1 restart)"),
        restarts => {
            let _ = write!(text, " ({restarts} restarts)");
        }
    }
    if view.ready == Some(false) && matches!(word, Status::Created | Status::Running) {
        text.push_str(" (not ready)");
    }
    if let Some(at) = view.ended_at_ms.filter(|_| !word.is_living()) {
        let _ = write!(text, " {} ago", ago(at, now));
    }
    if !view.damage.is_empty() {
        text.push_str(" (damaged)");
    }
    text
}

pub(crate) fn started(view: &SandboxView, now: u64) -> String {
    view.started_at_ms.map_or_else(|| "?".to_owned(), |at| format!("{} ago", ago(at, now)))
}

/// The age of a time, in one or two units; 0 if the clock was set back.
pub(crate) fn ago(at_ms: u64, now_ms: u64) -> String {
    span(now_ms.saturating_sub(at_ms) / 1000)
}

/// A number of seconds in one or two units.
pub(crate) fn span(seconds: u64) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    match seconds {
        0..MINUTE => format!("{seconds}s"),
        MINUTE..HOUR => format!("{}m", seconds / MINUTE),
        HOUR..DAY => format!("{}h{}m", seconds / HOUR, seconds % HOUR / MINUTE),
        _ => format!("{}d{}h", seconds / DAY, seconds % DAY / HOUR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_know_their_fields() {
        assert_eq!(format("json").unwrap(), Format::Json);
        assert!(matches!(format("{{.ID}}\\t{{ .Names }}").unwrap(), Format::Lines(_)));
        assert!(matches!(format("table {{.ID}}").unwrap(), Format::Table(_)));
        for text in ["{{.Id}}", "{{ID}}", "{{.ID", "{{}}", "{{.ID}} {{.Image}}"] {
            let refused = format(text).unwrap_err().to_string();
            assert!(refused.contains("{{.RunningFor}}"), "{refused}");
        }
        for (name, ..) in FIELDS {
            assert!(
                format("{{.X}}").unwrap_err().to_string().contains(&format!("{{{{.{name}}}}}")),
                "{name}"
            );
        }
    }

    #[test]
    fn spans_are_short_and_never_negative() {
        let texts: Vec<String> = [0, 59, 60, 3599, 3600, 86_399, 86_400, 200_000].map(span).into();
        assert_eq!(texts, ["0s", "59s", "1m", "59m", "1h0m", "23h59m", "1d0h", "2d7h"]);
        assert_eq!(ago(5000, 1000), "0s", "a clock that was set back");
    }
}
