//! Ctrl-C at a terminal goes to the command first; the command's reaction decides about the sandbox.

use super::launcher::{SERVE, await_started};
use crate::support::{Level, Terminal, TestEnv, has_program, json, wait_until};

/// Starts `penfold run` with these words and a script for bash, which prints `ready`.
fn start(env: &TestEnv, terminal: &Terminal<'_>, words: &str, script: &str) {
    std::fs::write(env.path("work/script"), script).unwrap();
    terminal.line(&format!("$PF {words} bash script"));
    terminal.shows("ready");
    await_started(std::process::id().try_into().unwrap());
}

fn shows_part(terminal: &Terminal<'_>, part: &str) {
    terminal.wait_until(part, |screen| screen.contains(part));
}

/// A shell gives its background jobs no chance to hear INT.
/// spec: 1.2.1
#[test]
fn rest_of_a_command_that_died_of_it_is_asked_politely() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let job = "trap '' INT; trap 'read -r _ < go; echo clean > asked; exit' TERM; mkfifo g go; echo job > up";
    let serve = "while :; do read -r -t 0.1 <> g; done";
    let script = format!(
        "({job}; {serve}) & setsid -f sleep 600; until [ -s up ]; do :; done; echo ready; exec sleep 601"
    );
    for level in env.levels().into_iter().map(Level::word) {
        start(&env, &terminal, &format!("--contain {level} --grace 10m"), &script);
        terminal.is_in_front("sleep 601");
        wait_until("the stray runs", || env.is_running("sleep 600"));
        terminal.press("C-c");
        // Writing waits for the job to read, in its handler.
        std::fs::write(env.path("work/go"), "go\n").unwrap();
        shows_part(&terminal, "verified gone");
        let screen = terminal.screen();
        assert!(screen.contains("ended by signal 2; ended 2 processes (2 TERM) in "), "{level}: {screen}");
        terminal.ends_with(130);
        assert_eq!(std::fs::read_to_string(env.path("work/asked")).unwrap(), "clean\n");
        for file in ["asked", "g", "go", "up"] {
            std::fs::remove_file(env.path("work").join(file)).unwrap();
        }
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// Who dies of INT as well is neither asked nor counted, whether it is dead by then or not.
/// spec: 1.2.1
#[test]
fn summary_is_always_the_same() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let heeds =
        "import signal, os; signal.signal(2, signal.SIG_DFL); os.execvp(\"sleep\", [\"sleep\", \"606\"])";
    let script =
        format!("sleep 603 | sleep 604 | sleep 605 & python3 -c '{heeds}' & echo ready; exec sleep 601");
    if !has_program(&["python3", "--version"]) {
        return;
    }
    for level in env.levels().into_iter().map(Level::word).cycle().take(9) {
        start(&env, &terminal, &format!("--contain {level}"), &script);
        terminal.is_in_front("sleep 601");
        wait_until("all run", || (603..607).all(|time| env.is_running(&format!("sleep {time}"))));
        terminal.press("C-c");
        shows_part(&terminal, "verified gone");
        let screen = terminal.screen();
        assert!(screen.contains("ended by signal 2; ended 3 processes (3 TERM) in "), "{level}: {screen}");
        terminal.ends_with(130);
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// spec: 1.2.1
#[test]
fn interpreter_that_handles_it_lives_on() {
    let env = TestEnv::new();
    if !has_program(&["python3", "--version"]) {
        return;
    }
    let Some(terminal) = Terminal::open(&env) else { return };
    for level in env.levels().into_iter().map(Level::word) {
        terminal.line(&format!("PYTHON_BASIC_REPL=1 $PF --contain {level} --grace 0.1 python3 -q"));
        terminal.shows(">>>");
        await_started(std::process::id().try_into().unwrap());
        terminal.press("C-c");
        terminal.shows("KeyboardInterrupt");
        // Two seconds later: the grace would be over.
        shows_part(&terminal, "penfold: the command handles Ctrl-C itself");
        terminal.line("print('still', 'here'); exit(7)");
        terminal.ends_with(7);
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// spec: 1.2.1
#[test]
fn handler_that_takes_its_time_is_not_cut_short() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let script =
        format!("trap 'read -r _ < go; echo cleaned; exit 4' INT; mkfifo go; setsid -f sleep 600; {SERVE}");
    for level in env.levels().into_iter().map(Level::word) {
        start(&env, &terminal, &format!("--contain {level} --grace 0.1"), &script);
        wait_until("the stray runs", || env.is_running("sleep 600"));
        terminal.press("C-c");
        shows_part(&terminal, "penfold: the command handles Ctrl-C itself");
        assert!(env.is_running("sleep 600"), "{level}");
        std::fs::write(env.path("work/go"), "go\n").unwrap();
        shows_part(&terminal, "exited with 4; ended 1 process (1 TERM)");
        terminal.ends_with(4);
        for file in ["go", "gate"] {
            std::fs::remove_file(env.path("work").join(file)).unwrap();
        }
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// spec: 1.2.1
#[test]
fn quit_after_it_kills() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let script = format!("trap 'echo got' INT; trap 'echo quit' QUIT; trap '' TERM; {SERVE}");
    for level in env.levels().into_iter().map(Level::word) {
        start(&env, &terminal, &format!("--contain {level}"), &script);
        // Without an INT before it is the command's alone.
        terminal.press("C-\\");
        shows_part(&terminal, "quit");
        terminal.press("C-c");
        shows_part(&terminal, "got");
        terminal.press("C-\\");
        shows_part(&terminal, "killed by Ctrl-\\; ended 1 process (1 KILL)");
        terminal.ends_with(137);
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// spec: 1.2.1
#[test]
fn command_that_ignores_it_is_stopped_and_a_second_one_kills() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    for level in env.levels().into_iter().map(Level::word) {
        let polite = format!("trap '' INT; trap 'echo asked; exit 3' TERM; {SERVE}");
        start(&env, &terminal, &format!("--contain {level} --grace 10m"), &polite);
        terminal.press("C-c");
        shows_part(&terminal, "stopped by Ctrl-C; ended 1 process (1 TERM)");
        terminal.ends_with(3);

        let deaf = format!("trap '' INT TERM; {SERVE}");
        start(&env, &terminal, &format!("--contain {level} --grace 10m"), &deaf);
        terminal.press("C-c");
        shows_part(&terminal, "penfold: stopping; what is left after 10m");
        terminal.press("C-c");
        shows_part(&terminal, "stopped by Ctrl-C; ended 1 process (1 KILL)");
        terminal.ends_with(137);
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// The inner one blocks INT and reads it from a descriptor.
/// spec: 1.2.1
#[test]
fn sandbox_inside_decides_for_itself() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let script = format!("trap 'echo got' INT; {SERVE}");
    std::fs::write(env.path("work/script"), &script).unwrap();
    terminal.line("$PF --grace 0.1 $PF --grace 0.1 bash script");
    terminal.shows("ready");
    await_started(std::process::id().try_into().unwrap());
    terminal.press("C-c");
    shows_part(&terminal, "got");
    shows_part(&terminal, "penfold: the command handles Ctrl-C itself");
    assert!(env.is_running("bash script"));
    terminal.press("C-\\");
    wait_until("the inner command has ended", || !env.is_running("bash script"));
    drop(terminal);
    env.assert_nothing_left();
}

/// spec: 2.6
#[test]
fn report_names_the_key_also_if_the_command_died_of_it() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    for level in env.levels().into_iter().map(Level::word) {
        for (script, cause, code) in [
            (format!("trap '' INT; trap 'exit 3' TERM; {SERVE}"), "stop", 3),
            ("echo ready; exec sleep 607".to_owned(), "signal", 130),
        ] {
            start(&env, &terminal, &format!("--contain {level} --report r.json"), &script);
            if cause == "signal" {
                terminal.is_in_front("sleep 607");
            }
            terminal.press("C-c");
            terminal.ends_with(code);
            let report = json(&env.path("work/r.json")).unwrap();
            let by = serde_json::json!({"signal": 2, "key": "Ctrl-C"});
            assert_eq!((&report["cause"], &report["by"]), (&cause.into(), &by), "{level}: {report}");
        }
    }
    drop(terminal);
    env.assert_nothing_left();
}
