//! Draws the view. Each line goes straight into the buffer: there is no layout to solve, and no size that does not fit.

mod page;
mod table;
mod words;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};

use crate::app::App;
use crate::model::{Page, StatusColour};

/// The lines below the table: a message, the command lines of the keys, other keys.
const FOOT: u16 = 3;
/// The lines above: the sums or the sandbox, and the headings or the numbers.
const HEAD: u16 = 2;

/// How many lines the table, or the page of a sandbox, has at this height.
pub(crate) fn line_count(height: u16) -> usize {
    usize::from(height.saturating_sub(FOOT + HEAD))
}

/// The styles, plain where no colour is wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub(crate) has_colour: bool,
}

impl Look {
    fn colour(self, colour: Color) -> Style {
        if self.has_colour { Style::new().fg(colour) } else { Style::new() }
    }

    fn mood(self, mood: StatusColour) -> Style {
        match mood {
            StatusColour::Running => self.colour(Color::Green),
            StatusColour::Passing => self.colour(Color::Yellow),
            StatusColour::Wrong => self.colour(Color::Red),
            StatusColour::Ended => self.colour(Color::DarkGray),
        }
    }
}

const PLAIN: Style = Style::new();
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws everything.
pub(crate) fn draw_screen(app: &App, look: Look, buffer: &mut Buffer) {
    let area = buffer.area;
    let mut canvas = Canvas { buffer, area };
    if app.shows_help {
        page::draw_help(&mut canvas);
        return;
    }
    match app.page() {
        Page::Table => table::draw_table(app, look, &mut canvas),
        Page::Tree(id) => page::draw_page(app, look, &mut canvas, &id, "processes"),
        Page::Log(id) => page::draw_page(app, look, &mut canvas, &id, "log"),
    }
    foot(app, look, &mut canvas);
}

/// The last lines of the screen.
fn foot(app: &App, look: Look, canvas: &mut Canvas<'_>) {
    let target = app.target();
    let message = if let Some(id) = &app.question {
        let name = app.rows.iter().find(|row| row.id == *id).map_or(id.as_str(), |row| row.label());
        Some((format!("Kill all processes of {name} ({id})? [y/N] "), look.colour(Color::Red).patch(BOLD)))
    } else if app.is_typing {
        Some((format!("/{}_", app.filter), BOLD))
    } else if let Some(problem) = &app.problem {
        Some((problem.clone(), look.colour(Color::Red)))
    } else if let Some(sentence) = target.and_then(|row| app.endings.sentence(&row.id)) {
        Some((sentence, look.colour(Color::Yellow)))
    } else if app.filter.is_empty() {
        None
    } else {
        Some((format!("filter: {} (Esc clears)", app.filter), PLAIN))
    };
    let height = canvas.area.height;
    if let Some((text, style)) = message {
        canvas.line(height.saturating_sub(3), &text, style);
    }
    let commands = target.map(|row| words::command_lines(&row.id)).unwrap_or_default();
    canvas.line(height.saturating_sub(2), &commands, look.colour(Color::Cyan));
    let keys = if app.open.is_some() { words::PAGE_KEYS } else { words::TABLE_KEYS };
    canvas.line(height.saturating_sub(1), keys, REVERSED);
}

/// A buffer that takes text at any place, and drops what is outside.
struct Canvas<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
}

impl Canvas<'_> {
    /// Writes at most `width` columns.
    fn put(&mut self, (x, y): (u16, u16), width: u16, text: &str, style: Style) {
        if x < self.area.width && y < self.area.height {
            let (x, y) = (self.area.x + x, self.area.y + y);
            self.buffer.set_stringn(x, y, text, usize::from(width), style);
        }
    }

    /// Writes a whole line.
    fn line(&mut self, y: u16, text: &str, style: Style) {
        if style == REVERSED {
            self.fill(y, style);
        }
        self.put((0, y), self.area.width, text, style);
    }

    /// Gives a whole line a style.
    fn fill(&mut self, y: u16, style: Style) {
        if y < self.area.height {
            let row = Rect { x: self.area.x, y: self.area.y + y, width: self.area.width, height: 1 };
            self.buffer.set_style(row, style);
        }
    }
}

#[cfg(test)]
mod tests;
