//! The state of the view, and what each key does to it. No I/O.

use std::collections::HashMap;

use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::endings::Endings;
use crate::model::{Detail, Ending, Page, Sandbox};

/// What the caller must do after a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Draw again.
    Draw,
    /// Draw again, and look at what the screen shows now.
    Look,
    /// End this sandbox.
    End(String, Ending),
    /// Stop this process, as a shell's job.
    Suspend,
    /// Leave.
    Quit,
}

/// The state of the view.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) rows: Vec<Sandbox>,
    pub(crate) details: HashMap<String, Detail>,
    /// Why the last look failed.
    pub(crate) problem: Option<String>,
    /// Whether there was a look yet.
    pub(crate) is_filled: bool,
    pub(crate) endings: Endings,
    pub(crate) filter: String,
    pub(crate) is_typing: bool,
    pub(crate) shows_help: bool,
    /// The sandbox that a question asks to kill.
    pub(crate) question: Option<String>,
    /// The page of a single sandbox, if it fills the screen.
    pub(crate) open: Option<Page>,
    /// The lines of that page; a sentence if there are none.
    pub(crate) lines: Result<Vec<String>, String>,
    /// The first line of that page on the screen; `None` follows the end.
    pub(crate) first_line: Option<usize>,
    selected: Option<String>,
    /// The first row of the table on the screen.
    pub(crate) first_row: usize,
    /// The number of rows or lines that the screen shows at once.
    pub(crate) height: usize,
}

impl Default for App {
    fn default() -> App {
        App {
            rows: Vec::new(),
            details: HashMap::new(),
            problem: None,
            is_filled: false,
            endings: Endings::default(),
            filter: String::new(),
            is_typing: false,
            shows_help: false,
            question: None,
            open: None,
            lines: Ok(Vec::new()),
            first_line: Some(0),
            selected: None,
            first_row: 0,
            height: 1,
        }
    }
}

impl App {
    /// Opens the tree of a sandbox.
    pub(crate) fn open_tree(&mut self, id: String) {
        self.selected = Some(id.clone());
        self.go(Page::Tree(id));
    }

    /// Returns the page on the screen.
    pub(crate) fn page(&self) -> Page {
        self.open.clone().unwrap_or(Page::Table)
    }

    /// Takes a new list.
    pub(crate) fn list(&mut self, listed: Result<Vec<Sandbox>, String>) {
        let place = self.place();
        match listed {
            Ok(rows) => {
                self.rows = rows;
                self.problem = None;
            }
            Err(sentence) => self.problem = Some(sentence),
        }
        self.is_filled = true;
        // The row that takes the place of a selected row that is gone.
        if self.selected_row().is_none() {
            self.select(place);
        }
    }

    /// Takes the details of rows, and the lines of the page if it is still open.
    pub(crate) fn fill(
        &mut self,
        details: HashMap<String, Detail>,
        page: &Page,
        lines: Result<Vec<String>, String>,
    ) {
        self.details = details;
        if *page == self.page() {
            self.lines = lines;
        }
    }

    /// Returns the rows that pass the filter.
    pub(crate) fn shown(&self) -> Vec<&Sandbox> {
        let wanted = self.filter.to_lowercase();
        let matches = |row: &&Sandbox| {
            let texts = [Some(&row.id), row.name.as_ref(), Some(&row.status), Some(&row.command)];
            let ports = self.details.get(&row.id).map(|detail| &detail.ports);
            texts.into_iter().chain([ports]).flatten().any(|text| text.to_lowercase().contains(&wanted))
        };
        self.rows.iter().filter(matches).collect()
    }

    /// Returns the rows on the screen.
    pub(crate) fn visible(&self) -> Vec<String> {
        let rows = self.shown().into_iter().skip(self.first_row).take(self.height);
        let open = self.open.as_ref().and_then(Page::sandbox).map(str::to_owned);
        rows.map(|row| row.id.clone()).chain(open).collect()
    }

    /// Returns the sandbox that a key acts on.
    pub(crate) fn target(&self) -> Option<&Sandbox> {
        match self.open.as_ref().and_then(Page::sandbox) {
            Some(id) => self.rows.iter().find(|row| row.id == id),
            None => self.selected_row(),
        }
    }

    /// Returns the index of the selected row among those shown; 0 if there is none.
    pub(crate) fn place(&self) -> usize {
        let is_selected = |row: &&Sandbox| Some(&row.id) == self.selected.as_ref();
        self.shown().iter().position(is_selected).unwrap_or(0)
    }

    fn selected_row(&self) -> Option<&Sandbox> {
        let selected = self.selected.as_ref()?;
        self.shown().into_iter().find(|row| row.id == *selected)
    }

    fn select(&mut self, place: usize) {
        let shown = self.shown();
        let place = place.min(shown.len().saturating_sub(1));
        self.selected = shown.get(place).map(|row| row.id.clone());
        let height = self.height;
        self.first_row = self.first_row.clamp((place + 1).saturating_sub(height), place);
    }

    /// Takes the number of rows or lines for which the terminal has room now.
    pub(crate) fn fit(&mut self, height: usize) {
        self.height = height.max(1);
        let place = self.place();
        let last = self.shown().len().saturating_sub(self.height);
        self.first_row = self.first_row.min(last).clamp((place + 1).saturating_sub(self.height), place);
    }

    fn go(&mut self, page: Page) {
        self.first_line = if matches!(page, Page::Log(_)) { None } else { Some(0) };
        self.lines = Ok(Vec::new());
        self.open = Some(page).filter(|page| *page != Page::Table);
    }

    /// Does what a key means.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::Draw;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Action::Quit,
                KeyCode::Char('z') => Action::Suspend,
                KeyCode::Char('l') => Action::Look,
                _ => Action::Draw,
            };
        }
        if let Some(id) = self.question.take() {
            return match key.code {
                KeyCode::Char('y' | 'Y') => self.end(id, Ending::Kill),
                _ => Action::Draw,
            };
        }
        if self.shows_help {
            self.shows_help = false;
            return if key.code == KeyCode::Char('q') { Action::Quit } else { Action::Draw };
        }
        if self.is_typing {
            return self.type_filter(key.code);
        }
        match key.code {
            KeyCode::Char('q') => Action::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => {
                self.shows_help = true;
                Action::Draw
            }
            KeyCode::Char('s') => self.on_target(|app, id| app.end(id, Ending::Stop)),
            KeyCode::Char('k') => self.on_target(|app, id| {
                app.question = Some(id);
                Action::Draw
            }),
            KeyCode::Char('l') => self.on_target(|app, id| {
                app.go(Page::Log(id));
                Action::Look
            }),
            _ if self.open.is_some() => self.page_key(key.code),
            _ => self.table_key(key.code),
        }
    }

    fn on_target(&mut self, act: impl FnOnce(&mut App, String) -> Action) -> Action {
        match self.target().map(|row| row.id.clone()) {
            Some(id) => act(self, id),
            None => Action::Draw,
        }
    }

    fn end(&mut self, id: String, ending: Ending) -> Action {
        if self.endings.begin(&id, ending) { Action::End(id, ending) } else { Action::Draw }
    }

    fn type_filter(&mut self, code: KeyCode) -> Action {
        match code {
            KeyCode::Char(character) => self.filter.push(character),
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            _ => {}
        }
        self.select(self.place());
        Action::Look
    }

    fn table_key(&mut self, code: KeyCode) -> Action {
        let (place, height) = (self.place(), self.height);
        match code {
            KeyCode::Esc if self.filter.is_empty() => return Action::Quit,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Enter | KeyCode::Right => {
                return self.on_target(|app, id| {
                    app.go(Page::Tree(id));
                    Action::Look
                });
            }
            KeyCode::Down | KeyCode::Char('j') => self.select(place + 1),
            KeyCode::Up => self.select(place.saturating_sub(1)),
            KeyCode::PageDown | KeyCode::Char(' ') => self.select(place + height),
            KeyCode::PageUp => self.select(place.saturating_sub(height)),
            KeyCode::Home | KeyCode::Char('g') => self.select(0),
            KeyCode::End | KeyCode::Char('G') => self.select(usize::MAX),
            _ => return Action::Draw,
        }
        Action::Look
    }

    fn page_key(&mut self, code: KeyCode) -> Action {
        let height = self.height;
        let last = self.lines.as_ref().map_or(0, Vec::len).saturating_sub(height);
        let first = self.first_line.unwrap_or(last).min(last);
        let to = match code {
            KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => {
                self.open = None;
                return Action::Look;
            }
            KeyCode::Enter => {
                return self.on_target(|app, id| {
                    app.go(Page::Tree(id));
                    Action::Look
                });
            }
            KeyCode::Down | KeyCode::Char('j') => first + 1,
            KeyCode::Up => first.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => first + height,
            KeyCode::PageUp => first.saturating_sub(height),
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            _ => return Action::Draw,
        };
        // At the end, a log follows again.
        let follows = to >= last && matches!(self.open, Some(Page::Log(_)));
        self.first_line = if follows { None } else { Some(to.min(last)) };
        Action::Draw
    }
}

#[cfg(test)]
mod tests;
