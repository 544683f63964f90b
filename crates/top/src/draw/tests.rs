//! What is on the screen, at any size.

use std::collections::HashMap;

use penfold_control::SandboxUsage;
use penfold_control::usage::UsageSource as From;
use ratatui_core::backend::TestBackend;
use ratatui_core::terminal::Terminal;
use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent};

use super::*;
use crate::model::{Detail, Ending, Sandbox};

fn sandbox(id: &str, name: Option<&str>) -> Sandbox {
    Sandbox {
        id: id.to_owned(),
        name: name.map(str::to_owned),
        status: "running".to_owned(),
        colour: StatusColour::Running,
        cpu_percent: Some(12.5),
        usage: Some(SandboxUsage {
            cpu_us: 1,
            cpu_source: From::Cgroup,
            memory_bytes: 64 << 20,
            memory_source: From::Processes,
            processes: 3,
        }),
        lease: "9m".to_owned(),
        command: "npm run dev".to_owned(),
    }
}

fn app() -> App {
    let mut app = App::default();
    app.list(Ok(vec![sandbox("0a1b2c3d4e5f", Some("web")), sandbox("111122223333", None)]));
    app.details = HashMap::from([(
        "0a1b2c3d4e5f".to_owned(),
        Detail { ports: "3000,8080".to_owned(), last_line: "ready 一二三".to_owned() },
    )]);
    app
}

fn screen(app: &mut App, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| {
            app.fit(line_count(frame.area().height));
            draw_screen(app, Look { has_colour: true }, frame.buffer_mut());
        })
        .unwrap();
    let text = terminal.backend().to_string();
    text.lines().map(|line| line.trim_matches('"').trim_end().to_owned()).collect()
}

fn press(app: &mut App, code: KeyCode) {
    let _ = app.key(KeyEvent::from(code));
}

#[test]
fn the_table_has_all_columns_where_there_is_room() {
    let lines = screen(&mut app(), 110, 10);
    assert_eq!(lines[0], "penfold top  2 sandboxes  CPU 25.0%  MEM 128M  PROCS 6");
    assert_eq!(
        lines[1],
        "NAME           STATUS             CPU    MEM PROCS PORTS          LEASE  LAST OUTPUT"
    );
    assert!(
        lines[2]
            .starts_with("web            running          12.5%    64M     3 3000,8080      9m     ready 一"),
        "{}",
        lines[2]
    );
    assert!(
        lines[3].starts_with(
            "111122223333   running          12.5%    64M     3 -              9m     npm run dev"
        )
    );
    assert_eq!(
        lines[8],
        "penfold tree -p --full 0a1b2c3d4e5f | logs -f 0a1b2c3d4e5f | stop 0a1b2c3d4e5f | kill 0a1b2c3d4e5f"
    );
    assert_eq!(lines[9], "enter tree  l logs  s stop  k kill  / filter  ? help  q quit");
}

#[test]
fn a_small_terminal_keeps_name_and_status() {
    let lines = screen(&mut app(), 40, 10);
    assert_eq!(lines[1], "NAME           STATUS             CPU");
    assert!(lines[2].starts_with("web            running          12.5%"));
    assert!(lines[3].starts_with("111122223333   running"));
}

#[test]
fn no_size_panics_on_any_page() {
    for (width, height) in (0..45).flat_map(|width| (0..12).map(move |height| (width, height))) {
        let mut app = app();
        for key in ["", "/w", "\n", "?", "?k", "nl", "?", "?s"] {
            for character in key.chars() {
                let code = if character == '\n' { KeyCode::Enter } else { KeyCode::Char(character) };
                press(&mut app, code);
            }
            app.fit(line_count(height));
            draw_screen(&app, Look { has_colour: true }, &mut Buffer::empty(Rect::new(0, 0, width, height)));
        }
    }
}

#[test]
fn a_question_names_the_sandbox_and_its_default() {
    let mut app = app();
    press(&mut app, KeyCode::Char('k'));
    assert_eq!(screen(&mut app, 80, 10)[7], "Kill all processes of web (0a1b2c3d4e5f)? [y/N]");
    press(&mut app, KeyCode::Char('n'));
    assert_eq!(screen(&mut app, 80, 10)[7], "");
}

#[test]
fn an_end_shows_its_progress_and_what_was_verified() {
    let mut app = app();
    press(&mut app, KeyCode::Char('s'));
    let lines = screen(&mut app, 80, 10);
    assert!(lines[2].starts_with("web            stopping…"), "{}", lines[2]);
    app.endings.finish("0a1b2c3d4e5f", Ending::Stop, Ok(penfold_control::StopResult::Gone));
    let lines = screen(&mut app, 80, 10);
    assert!(lines[2].starts_with("web            gone (verified)"), "{}", lines[2]);
    assert_eq!(lines[7], "0a1b2c3d4e5f: gone (verified)");
}

#[test]
fn a_page_shows_the_numbers_and_the_lines() {
    let mut app = app();
    press(&mut app, KeyCode::Enter);
    app.fill(app.details.clone(), &app.page(), Ok((1..=20).map(|number| format!("line {number}")).collect()));
    let lines = screen(&mut app, 90, 10);
    assert_eq!(lines[0], "processes of web (0a1b2c3d4e5f)  npm run dev");
    assert_eq!(lines[1], "running  CPU 12.5%  MEM 64M  PROCS 3  PORTS 3000,8080  LEASE 9m");
    assert_eq!((lines[2].as_str(), lines[6].as_str()), ("line 1", "line 5"));
    press(&mut app, KeyCode::Char('l'));
    app.fill(app.details.clone(), &app.page(), Ok((1..=20).map(|number| format!("line {number}")).collect()));
    let lines = screen(&mut app, 90, 10);
    assert_eq!((lines[2].as_str(), lines[6].as_str()), ("line 16", "line 20"), "a log shows its end");
}

#[test]
fn an_empty_table_says_why() {
    let mut app = App::default();
    assert_eq!(screen(&mut app, 60, 8)[2], "looking…");
    app.list(Ok(Vec::new()));
    assert_eq!(screen(&mut app, 60, 8)[2], "no sandbox runs: `penfold run` starts one");
    app.list(Err("cannot list the sandboxes: permission denied".to_owned()));
    assert_eq!(screen(&mut app, 60, 8)[5], "cannot list the sandboxes: permission denied");
}

#[test]
fn without_colour_there_is_none() {
    for (has_colour, expected) in [(true, Some(Color::Green)), (false, None)] {
        let mut app = app();
        app.fit(5);
        let mut buffer = Buffer::empty(Rect::new(0, 0, 80, 10));
        draw_screen(&app, Look { has_colour }, &mut buffer);
        let colours = buffer.content().iter().map(|cell| cell.fg).find(|fg| *fg == Color::Green);
        assert_eq!(colours, expected);
    }
}
