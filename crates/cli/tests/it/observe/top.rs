//! `penfold top` at a terminal: what it shows, what its keys do, and how it leaves the terminal.

use rustix::process::Signal;

use crate::support::{Process, TREE, Terminal, TestEnv, penfold, wait_until};

const TOP: &str = "$PENFOLD --root $ROOT top";
/// The first columns of a row.
fn row(name: &str, status: &str) -> String {
    format!("{name:<14} {status}*")
}

/// The process that shows the sandboxes.
#[track_caller]
fn viewer(env: &TestEnv) -> Process {
    let command = format!("{} --root {} top", penfold().display(), env.root().display());
    env.running(&command).pop().expect("`penfold top` runs")
}

/// Checks that the terminal is as a shell wants it.
#[track_caller]
fn assert_restored(terminal: &Terminal<'_>) {
    assert_eq!(terminal.property("#{alternate_on} #{cursor_flag}"), "0 1", "{}", terminal.screen());
    terminal.line("stty -a | grep -o ' icanon.* echo '");
    terminal.shows(" icanon*");
}

/// spec: 24.3
#[test]
fn without_a_terminal_it_refuses_in_one_sentence() {
    let env = TestEnv::new();
    env.call(["top"]).refused(2, "needs a terminal");
}

/// spec: 24.3, 24.4
#[test]
fn kill_asks_first_and_says_gone_when_it_is_verified() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let sandbox = env.detach(["--name", "web", "--", "bash", "-c", TREE]);
    env.await_up(&["lead", "deaf"]);
    let members = sandbox.members(&env);
    assert!(members.len() >= 4, "{members:?}");
    terminal.line(TOP);
    terminal.shows(&row("web", "running"));
    terminal.press("k");
    terminal.shows(&format!("Kill all processes of web ({})? [y/N]", sandbox.id));
    terminal.press("Enter");
    // The list is read anew each second: the sandbox would be gone by the second look.
    terminal.wait_until("the question is closed", |screen| !screen.contains("[y/N]"));
    terminal.press("Enter");
    terminal.shows("processes of web*");
    terminal.shows("├─*");
    assert!(members.iter().all(|member| !member.has_ended()), "the default is no");
    terminal.press("Escape");
    terminal.shows(&row("web", "running"));
    terminal.press("k");
    terminal.shows("Kill all processes*");
    terminal.press("y");
    terminal.shows(&row("web", "gone (verified)"));
    sandbox.assert_gone(&members);
    terminal.press("q");
    terminal.ends_with(0);
    assert_restored(&terminal);
}

/// spec: 24.4
#[test]
fn stop_is_polite_and_waits_for_the_end_without_holding_up_keys() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let script = "trap 'echo asked' TERM; echo lead >> $UP; while :; do sleep 0.05; done";
    let sandbox = env.detach(["--name", "deaf", "--grace", "10m", "--", "bash", "-c", script]);
    env.await_up(&["lead"]);
    terminal.line(TOP);
    terminal.shows(&row("deaf", "running"));
    terminal.press("s");
    terminal.shows(&row("deaf", "stopping…"));
    terminal.press("l");
    terminal.shows("asked");
    terminal.press("q");
    terminal.shows(&format!("penfold: {} was not gone yet*", sandbox.id));
    terminal.ends_with(0);
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    assert_eq!(sandbox.cause().as_deref(), Some("stop"));
}

/// spec: 24.3
#[test]
fn a_filter_shows_some_rows_and_an_end_shows_in_its_row() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let script = "echo lead >> $UP; until test -e go; do sleep 0.05; done; exit 3";
    env.detach(["--name", "quick", "--", "bash", "-c", script]);
    env.detach([
        "--name",
        "web",
        "--ttl",
        "20m",
        "--",
        "sh",
        "-c",
        "printf '\\033[31mready\\033[0m\\n'; sleep 4511",
    ]);
    env.await_up(&["lead"]);
    terminal.line(TOP);
    terminal.shows(&row("web", "running"));
    wait_until("the last line is there", || {
        let screen = terminal.screen();
        screen
            .lines()
            .any(|line| line.starts_with("web") && line.contains("19m") && line.trim_end().ends_with("ready"))
    });
    terminal.tmux(&["send-keys", "-l", "/qui"]);
    terminal.shows("/qui_");
    terminal.wait_until("the other row is hidden", |screen| !screen.contains("ready"));
    terminal.shows(&row("quick", "running"));
    std::fs::write(env.path("work/go"), "").unwrap();
    terminal.shows(&row("quick", "exited (3)"));
    terminal.press("Escape");
    terminal.shows(&row("web", "running"));
    terminal.press("Escape");
    terminal.ends_with(0);
    assert_restored(&terminal);
}

/// spec: 24.4
#[test]
fn a_signal_restores_the_terminal_and_is_the_end() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let sandbox = env.detach(["--name", "web", "--", "sleep", "4512"]);
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        terminal.line(TOP);
        terminal.shows(&row("web", "running"));
        assert_eq!(terminal.property("#{alternate_on}"), "1");
        viewer(&env).signal(signal);
        terminal.ends_with(code);
        assert_restored(&terminal);
        terminal.line("clear");
    }
    assert!(!sandbox.has_ended());
}

/// spec: 24.4
#[test]
fn ctrl_z_gives_the_terminal_back_and_fg_takes_it_again() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    env.detach(["--name", "web", "--", "sleep", "4513"]);
    terminal.line(TOP);
    terminal.shows(&row("web", "running"));
    terminal.press("C-z");
    terminal.shows("[1]+  Stopped*");
    assert_restored(&terminal);
    terminal.line("fg");
    terminal.shows(&row("web", "running"));
    terminal.tmux(&["resize-window", "-x", "40", "-y", "10"]);
    terminal.shows("NAME           STATUS             CPU");
    terminal.shows(&row("web", "running"));
    terminal.press("C-c");
    terminal.ends_with(0);
    assert_restored(&terminal);
}

/// spec: 24.3
#[test]
fn a_foreground_sandbox_has_a_row_and_no_log() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let running = env.shell("$PF --name front sleep 4514");
    wait_until("it runs", || env.is_running("sleep 4514"));
    terminal.line(&format!("{TOP} front"));
    terminal.shows("processes of front*");
    terminal.press("l");
    terminal.shows("no log: only a sandbox of `penfold run -d` has one");
    terminal.press("k");
    terminal.shows("Kill all processes of front*");
    terminal.press("y");
    terminal.wait_until("the end is verified", |screen| screen.contains("gone (verified)"));
    assert!(running.finish().code().is_some_and(|code| code != 0));
    terminal.press("q");
    terminal.ends_with(0);
}
