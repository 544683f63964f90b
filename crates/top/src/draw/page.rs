//! The pages that fill the screen: the processes of a sandbox, its log, the help.

use penfold_control::usage::words::{format_percent, format_size};

use super::{BOLD, Canvas, HEAD, Look, PLAIN, words};
use crate::app::App;

/// Draws the lines of a sandbox below its numbers.
pub(super) fn draw_page(app: &App, look: Look, canvas: &mut Canvas<'_>, id: &str, what: &str) {
    let row = app.rows.iter().find(|row| row.id == id);
    let name = row.map_or(id, |row| row.label());
    let command = row.map_or("", |row| row.command.as_str());
    canvas.line(0, &format!("{what} of {name} ({id})  {command}"), BOLD);
    let status = match (app.endings.word(id), row) {
        (Some(word), _) => word.to_owned(),
        (None, Some(row)) => row.status.clone(),
        (None, None) if app.is_filled => "there is no such sandbox any more".to_owned(),
        (None, None) => "looking…".to_owned(),
    };
    let mut numbers = status;
    if let Some((row, usage)) = row.and_then(|row| Some((row, row.usage?))) {
        let (cpu, memory) = (format_percent(row.cpu_percent), format_size(usage.memory_bytes));
        numbers = format!("{numbers}  CPU {cpu}  MEM {memory}  PROCS {}", usage.processes);
        let ports = app.details.get(id).map_or("", |detail| detail.ports.as_str());
        if !ports.is_empty() {
            numbers = format!("{numbers}  PORTS {ports}");
        }
        if row.lease != "-" {
            numbers = format!("{numbers}  LEASE {}", row.lease);
        }
    }
    let style = row.map_or(PLAIN, |row| look.mood(row.colour));
    canvas.line(1, &numbers, style);
    match &app.lines {
        Err(sentence) => canvas.line(HEAD, sentence, PLAIN),
        Ok(lines) => {
            let last = lines.len().saturating_sub(app.height);
            let first = app.first_line.unwrap_or(last).min(last);
            for (y, line) in (HEAD..).zip(lines.iter().skip(first).take(app.height)) {
                canvas.line(y, line, PLAIN);
            }
        }
    }
}

/// Draws the help.
pub(super) fn draw_help(canvas: &mut Canvas<'_>) {
    canvas.line(0, "penfold top: keys, and the commands that do the same", BOLD);
    for (y, line) in (HEAD..).zip(words::HELP) {
        canvas.line(y, line, PLAIN);
    }
}
