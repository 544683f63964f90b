//! The table of all sandboxes.

use penfold_control::usage::words::{format_percent, format_size};
use ratatui_core::style::Style;

use super::{BOLD, Canvas, HEAD, Look, PLAIN, REVERSED};
use crate::app::App;
use crate::model::Sandbox;

/// A column: its heading, its width, and the width of the terminal from which it is shown.
struct Column {
    heading: &'static str,
    width: u16,
    from: u16,
    is_number: bool,
}

const fn text(heading: &'static str, width: u16, from: u16) -> Column {
    Column { heading, width, from, is_number: false }
}

const fn number(heading: &'static str, width: u16, from: u16) -> Column {
    Column { heading, width, from, is_number: true }
}

/// The last one takes the rest of the line.
const COLUMNS: [Column; 8] = [
    text("NAME", 14, 0),
    text("STATUS", 15, 0),
    number("CPU", 6, 38),
    number("MEM", 6, 46),
    number("PROCS", 5, 52),
    text("PORTS", 14, 80),
    text("LEASE", 6, 68),
    text("LAST OUTPUT", u16::MAX, 60),
];

/// The columns between two columns.
const GAP: u16 = 1;

pub(super) fn draw_table(app: &App, look: Look, canvas: &mut Canvas<'_>) {
    canvas.line(0, &sums(app), BOLD);
    canvas.fill(1, REVERSED);
    cells(canvas, 1, &COLUMNS.each_ref().map(|column| column.heading.to_owned()), REVERSED, None);
    let shown = app.shown();
    let selected = app.place();
    if shown.is_empty() {
        canvas.line(HEAD, nothing(app), PLAIN);
    }
    for (index, row) in shown.iter().enumerate().skip(app.first_row).take(app.height) {
        let Ok(y) = u16::try_from(index - app.first_row) else { break };
        let is_selected = index == selected;
        let style = if is_selected { REVERSED } else { PLAIN };
        if is_selected {
            canvas.fill(HEAD + y, style);
        }
        let mood = if is_selected { style } else { look.mood(row.colour) };
        cells(canvas, HEAD + y, &values(app, row), style, Some(mood));
    }
}

/// What stands in place of the rows.
fn nothing(app: &App) -> &'static str {
    match (app.is_filled, app.rows.is_empty()) {
        (false, _) => "looking…",
        (true, true) => "no sandbox runs: `penfold run` starts one",
        (true, false) => "no sandbox matches the filter",
    }
}

fn sums(app: &App) -> String {
    let usages = || app.rows.iter().filter_map(|row| row.usage);
    let cpu: f64 = app.rows.iter().filter_map(|row| row.cpu_percent).sum();
    let memory = usages().map(|usage| usage.memory_bytes).fold(0, u64::saturating_add);
    let processes: usize = usages().map(|usage| usage.processes).sum();
    let count = usages().count();
    let noun = if count == 1 { "sandbox" } else { "sandboxes" };
    let (cpu, memory) = (format_percent(Some(cpu)), format_size(memory));
    format!("penfold top  {count} {noun}  CPU {cpu}  MEM {memory}  PROCS {processes}")
}

fn values(app: &App, row: &Sandbox) -> [String; 8] {
    let detail = app.details.get(&row.id).cloned().unwrap_or_default();
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        row.label().to_owned(),
        app.endings.word(&row.id).map_or_else(|| row.status.clone(), str::to_owned),
        format_percent(row.cpu_percent),
        or_dash(row.usage.map(|usage| format_size(usage.memory_bytes))),
        or_dash(row.usage.map(|usage| usage.processes.to_string())),
        or_dash(Some(detail.ports).filter(|ports| !ports.is_empty())),
        row.lease.clone(),
        if detail.last_line.is_empty() { row.command.clone() } else { detail.last_line },
    ]
}

/// Writes a line of cells; `status` is the style of the second cell.
fn cells(canvas: &mut Canvas<'_>, y: u16, values: &[String; 8], style: Style, status: Option<Style>) {
    let mut x = 0;
    for (index, (column, value)) in COLUMNS.iter().zip(values).enumerate() {
        if canvas.area.width < column.from {
            continue;
        }
        let width = column.width.min(canvas.area.width.saturating_sub(x));
        let padded = usize::from(width).saturating_sub(value.chars().count());
        let text = if column.is_number { format!("{}{value}", " ".repeat(padded)) } else { value.clone() };
        let style = if index == 1 { status.unwrap_or(style) } else { style };
        canvas.put((x, y), width, &text, style);
        x = x.saturating_add(column.width).saturating_add(GAP);
    }
}
