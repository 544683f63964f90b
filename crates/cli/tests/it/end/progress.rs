//! An end that takes long says on a terminal what it waits for, in a line that goes at the end.

use crate::support::{Level, Terminal, TestEnv, wait_until};

/// A leader that ignores the polite signal.
const DEAF: &str = "trap '' TERM; echo ready >> $UP; while :; do sleep 1000; done";
const WORDS: [&str; 4] = ["waiting for", "removing", "stopping 1", "killing 1"];

/// Waits for a part of the screen; gives the line.
#[track_caller]
fn shown(terminal: &Terminal<'_>, part: &str) -> String {
    let mut line = String::new();
    wait_until(part, || {
        let screen = terminal.screen();
        screen.lines().find(|line| line.contains(part)).unwrap_or_default().clone_into(&mut line);
        !line.is_empty()
    });
    line
}

/// Waits for the end, and checks that no line of the progress is left.
#[track_caller]
fn erased(terminal: &Terminal<'_>, code: i32) {
    let prompt = format!("<{code}>");
    terminal.wait_until("the end", |screen| screen.trim_end().ends_with(&prompt));
    let screen = terminal.screen();
    assert!(!WORDS.iter().any(|words| screen.contains(words)), "{screen}");
    terminal.ends_with(code);
}

/// spec: 8.10
#[test]
fn the_end_of_a_foreground_sandbox_names_what_it_waits_for() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    std::fs::write(env.path("work/script"), DEAF).unwrap();
    for level in env.levels().into_iter().filter(|level| *level != Level::Pidns).map(Level::word) {
        terminal.line(&format!("$PF --contain {level} --timeout 100ms --grace 3s bash script"));
        let line = shown(&terminal, "penfold: waiting for ");
        assert!(line.contains(" process") && line.contains("(S)"), "{line}");
        erased(&terminal, 124);
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// spec: 8.10
#[test]
fn stop_names_what_it_waits_for() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let sandbox = env.detach(["--name", "deaf", "--", "bash", "-c", DEAF]);
    env.await_up(&["ready"]);
    terminal.line(&format!("$PENFOLD --root $ROOT stop -t 3s {}", sandbox.id));
    let line = shown(&terminal, "stopping 1 sandbox: waiting for ");
    assert!(line.contains(" process"), "{line}");
    erased(&terminal, 0);
    drop(terminal);
    sandbox.call(&env, &["rm", "ID"]).with_code(0);
    env.assert_nothing_left();
}

/// spec: 8.10
#[test]
fn without_a_terminal_or_with_quiet_nothing_is_shown() {
    let env = TestEnv::new();
    let run = env.run(["--timeout", "100ms", "--grace", "2s", "--", "bash", "-c", DEAF]).with_code(124);
    assert!(!run.err().contains("waiting for") && !run.err().contains('\x1b'), "{}", run.err());
    let Some(terminal) = Terminal::open(&env) else { return };
    std::fs::write(env.path("work/script"), DEAF).unwrap();
    terminal.line("$PF -q --timeout 100ms --grace 2s bash script; echo over");
    terminal.shows("over");
    let screen = terminal.screen();
    assert!(!WORDS.iter().any(|words| screen.contains(words)), "{screen}");
    drop(terminal);
    env.assert_nothing_left();
}
