//! What keys do. No terminal is needed.

use super::*;
use crate::model::StatusColour;

pub(crate) fn sandbox(id: &str, name: &str) -> Sandbox {
    Sandbox {
        id: id.to_owned(),
        name: Some(name.to_owned()).filter(|name| !name.is_empty()),
        status: "running".to_owned(),
        colour: StatusColour::Running,
        cpu_percent: Some(12.5),
        usage: None,
        lease: "-".to_owned(),
        command: "sleep 600".to_owned(),
    }
}

fn app(names: &[&str]) -> App {
    let mut app = App::default();
    app.list(Ok(names.iter().map(|name| sandbox(&format!("id-{name}"), name)).collect()));
    app.fit(3);
    app
}

fn press(app: &mut App, code: KeyCode) -> Action {
    app.key(KeyEvent::from(code))
}

fn letters(app: &mut App, text: &str) {
    for character in text.chars() {
        press(app, KeyCode::Char(character));
    }
}

fn selected(app: &App) -> &str {
    app.target().map_or("", |row| row.label())
}

#[test]
fn kill_asks_and_only_y_means_yes() {
    for no in [KeyCode::Char('n'), KeyCode::Enter, KeyCode::Esc, KeyCode::Char('k'), KeyCode::Char('q')] {
        let mut app = app(&["a", "b"]);
        assert_eq!(press(&mut app, KeyCode::Char('k')), Action::Draw);
        assert_eq!(app.question.as_deref(), Some("id-a"));
        assert_eq!(press(&mut app, no), Action::Draw, "{no:?}");
        assert_eq!((app.question.as_deref(), app.endings.word("id-a")), (None, None), "{no:?}");
    }
    let mut app = app(&["a", "b"]);
    press(&mut app, KeyCode::Char('k'));
    // The list changes while the question is open: the answer is about the sandbox that it named.
    app.list(Ok(vec![sandbox("id-b", "b")]));
    assert_eq!(press(&mut app, KeyCode::Char('y')), Action::End("id-a".to_owned(), Ending::Kill));
}

#[test]
fn stop_does_not_ask_and_begins_once() {
    let mut app = app(&["a"]);
    assert_eq!(press(&mut app, KeyCode::Char('s')), Action::End("id-a".to_owned(), Ending::Stop));
    assert_eq!(press(&mut app, KeyCode::Char('s')), Action::Draw);
    assert_eq!(app.endings.word("id-a"), Some("stopping…"));
}

#[test]
fn the_selection_stays_with_its_sandbox() {
    let mut app = app(&["a", "b", "c", "d", "e"]);
    for key in [KeyCode::Down, KeyCode::Char('j'), KeyCode::Down] {
        press(&mut app, key);
    }
    assert_eq!((selected(&app), app.first_row), ("d", 1), "the table scrolls");
    let names = ["new", "a", "b", "d", "e"].map(|name| sandbox(&format!("id-{name}"), name));
    app.list(Ok(names.to_vec()));
    assert_eq!(selected(&app), "d");
    app.list(Ok(["a", "b", "c", "e"].map(|name| sandbox(&format!("id-{name}"), name)).to_vec()));
    assert_eq!(selected(&app), "e", "the row that took its place");
    app.list(Ok(Vec::new()));
    assert_eq!(press(&mut app, KeyCode::Char('k')), Action::Draw);
    assert_eq!((selected(&app), app.question.as_deref()), ("", None));
}

#[test]
fn moves_stop_at_the_ends() {
    let mut app = app(&["a", "b", "c", "d", "e"]);
    press(&mut app, KeyCode::Up);
    assert_eq!(selected(&app), "a");
    press(&mut app, KeyCode::End);
    assert_eq!((selected(&app), app.first_row), ("e", 2));
    press(&mut app, KeyCode::PageDown);
    press(&mut app, KeyCode::PageUp);
    assert_eq!((selected(&app), app.first_row), ("b", 1));
    press(&mut app, KeyCode::Home);
    assert_eq!((selected(&app), app.first_row), ("a", 0));
    press(&mut app, KeyCode::End);
    app.fit(1);
    assert_eq!(app.first_row, 4, "the selected row stays on a smaller screen");
    app.fit(100);
    assert_eq!(app.first_row, 0);
}

#[test]
fn a_filter_takes_letters_that_are_keys_elsewhere() {
    let mut app = app(&["web", "quick", "sack"]);
    letters(&mut app, "/qk");
    assert!(app.is_typing && app.shown().is_empty());
    press(&mut app, KeyCode::Backspace);
    assert_eq!((selected(&app), app.filter.as_str()), ("quick", "q"));
    press(&mut app, KeyCode::Enter);
    assert_eq!((app.is_typing, app.shown().len()), (false, 1));
    assert_eq!(press(&mut app, KeyCode::Esc), Action::Look, "the first Esc clears the filter");
    assert_eq!(app.shown().len(), 3);
    assert_eq!(press(&mut app, KeyCode::Esc), Action::Quit);
}

#[test]
fn each_way_out_is_one_key() {
    let control = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
    let mut app = app(&["a"]);
    assert_eq!(app.key(control('c')), Action::Quit);
    assert_eq!(app.key(control('z')), Action::Suspend);
    assert_eq!(press(&mut app, KeyCode::Char('q')), Action::Quit);
    press(&mut app, KeyCode::Char('k'));
    assert_eq!(app.key(control('c')), Action::Quit, "also from a question");
    let mut app = self::app(&["a"]);
    letters(&mut app, "/x");
    assert_eq!(app.key(control('c')), Action::Quit, "also from the filter");
}

#[test]
fn pages_scroll_and_a_log_follows_its_end() {
    let mut app = app(&["a", "b"]);
    assert_eq!(press(&mut app, KeyCode::Char('l')), Action::Look);
    let page = Page::Log("id-a".to_owned());
    assert_eq!((app.page(), app.first_line), (page.clone(), None));
    let lines: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    app.fill(HashMap::new(), &page, Ok(lines.clone()));
    press(&mut app, KeyCode::Up);
    assert_eq!(app.first_line, Some(6), "it stays where it was scrolled to");
    press(&mut app, KeyCode::Down);
    assert_eq!(app.first_line, None, "at the end it follows");
    app.fill(HashMap::new(), &Page::Tree("id-a".to_owned()), Ok(Vec::new()));
    assert_eq!(app.lines, Ok(lines), "lines of another page come too late");
    assert_eq!(press(&mut app, KeyCode::Esc), Action::Look);
    assert_eq!(app.page(), Page::Table);
    assert_eq!(press(&mut app, KeyCode::Enter), Action::Look);
    assert_eq!(app.page(), Page::Tree("id-a".to_owned()));
    assert!(app.visible().contains(&"id-a".to_owned()));
}

#[test]
fn a_failed_look_keeps_the_rows_and_says_why() {
    let mut app = app(&["a"]);
    app.list(Err("cannot list the sandboxes".to_owned()));
    assert_eq!((app.rows.len(), app.problem.is_some()), (1, true));
    app.list(Ok(Vec::new()));
    assert_eq!((app.rows.len(), app.problem.is_some()), (0, false));
}
