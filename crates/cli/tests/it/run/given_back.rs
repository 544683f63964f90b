//! The terminal after `penfold run`: the group that had it before the command has it again.

use rustix::process::Signal;

use crate::support::{Level, Terminal, TestEnv, has_program, wait_until};

/// An interactive shell, which takes the terminal for the group of each of its commands.
const SHELL: &str = "bash --norc --noprofile -ic";

/// Lets a script run a command that takes the terminal, ends it, and sees the script read the terminal after that.
#[track_caller]
fn script_reads_after(env: &TestEnv, terminal: &Terminal<'_>, run: &str, code: i32, end: impl FnOnce()) {
    let end_of_subshell = if run.starts_with('(') { ")" } else { "" };
    let words = format!("{run} {SHELL} \"sleep 600; :\"{end_of_subshell}");
    terminal.line(&format!("bash -c '{words}; code=$?; echo over; read x; echo got $x; exit $code'"));
    terminal.is_in_front("sleep 600");
    end();
    terminal.shows("over");
    assert!(!env.is_running("sleep 600"));
    terminal.line("word");
    terminal.shows("got word");
    terminal.ends_with(code);
}

/// The only process with this command line, which a test kills.
fn kill(env: &TestEnv, command: &str) {
    let [process] = &env.find(command)[..] else { panic!("not one `{command}`") };
    process.signal(Signal::KILL);
}

/// spec: 8.7.1
#[test]
fn script_reads_the_terminal_after_each_end_of_a_command_that_had_it() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let only = || env.listed_ids(&[]).pop().unwrap();
    for level in env.levels().into_iter().map(Level::word) {
        let run = format!("$PF -q --contain {level}");
        let end = |run: &str, code, end: &dyn Fn()| script_reads_after(&env, &terminal, run, code, end);
        end(&run, 137, &|| drop(env.call(["kill", &only()]).with_code(0)));
        end(&run, 0, &|| drop(env.call(["stop", "-t", "0.1", &only()]).with_code(0)));
        end(&run, 137, &|| env.find("pf-supervisor")[0].signal(Signal::KILL));
        end(&run, 137, &|| kill(&env, SHELL));
        // With a child of its own, the launcher leaves the kill to a standby.
        end(&format!("(sleep 601 & exec {run}"), 137, &|| env.find("pf-supervisor")[0].signal(Signal::KILL));
        kill(&env, "sleep 601");
    }
    script_reads_after(&env, &terminal, "$PF -q --timeout 1 --grace 0.1", 124, || {});
    drop(terminal);
    env.assert_nothing_left();
}

/// spec: 8.7.1
#[test]
fn script_reads_the_terminal_after_a_guard_a_nested_sandbox_and_a_jail() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let penfold = "$PENFOLD --root $ROOT";
    let guards = [
        format!("{penfold} guard -t 0 --"),
        format!("{penfold} guard-each -t 0"),
        "$PF -q $PF -q".to_owned(),
    ];
    let jail =
        has_program(&["bwrap", "--ro-bind", "/", "/", "true"]).then(|| "$PF -q --profile jail".to_owned());
    for run in guards.into_iter().chain(jail) {
        script_reads_after(&env, &terminal, &run, 137, || kill(&env, SHELL));
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// What the end has left alone was in front, too.
/// spec: 8.7.1
#[test]
fn script_reads_the_terminal_that_a_spared_process_had() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let words = format!("$PF -q --spare sleep {SHELL} \"sleep 600; :\"");
    terminal.line(&format!("bash -c '{words}; echo over; read x; echo got $x; exit 6'"));
    terminal.is_in_front("sleep 600");
    kill(&env, SHELL);
    terminal.shows("over");
    let [spared] = &env.running("sleep 600")[..] else { panic!("nothing is spared") };
    terminal.line("word");
    terminal.shows("got word");
    terminal.ends_with(6);
    spared.signal(Signal::KILL);
    drop(terminal);
    env.assert_nothing_left();
}

/// The script that has the terminal is not the one that penfold runs in: it keeps the terminal.
/// spec: 8.7.1
#[test]
fn run_in_the_background_takes_no_terminal_from_a_living_group() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    terminal.line("$PF -q sh -c ': > up; sleep 600' & cat");
    wait_until("the command runs", || env.path("work/up").try_exists().unwrap());
    terminal.is_in_front("cat");
    env.call(["kill", "--all", "-f"]).with_code(0);
    assert!(!env.is_running("sleep 600"));
    terminal.line("word");
    terminal.shows("word");
    terminal.press("C-d");
    terminal.ends_with(0);
    drop(terminal);
    env.assert_nothing_left();
}

/// The caller's process group has no number in a pid namespace, to which dash gives the terminal back before it exits.
/// spec: 8.7.2
#[test]
fn interactive_shell_in_a_pid_namespace_keeps_its_keys_and_its_code() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let pidns = env.levels().contains(&Level::Pidns).then_some("--contain pidns");
    let jail = has_program(&["bwrap", "--ro-bind", "/", "/", "true"]).then_some("--profile jail");
    for words in pidns.into_iter().chain(jail) {
        terminal.line(&format!("$PF -q {words} dash -i -c 'exit 5'"));
        terminal.ends_with(5);
        terminal.line(&format!("bash -c '$PF -q {words} -e PS1=\"inner> \" dash -i; read x; echo got $x'"));
        terminal.shows("inner>");
        terminal.line("sleep 600");
        terminal.is_in_front("sleep 600");
        terminal.press("C-c");
        terminal.shows("inner>");
        terminal.line("sleep 601");
        terminal.is_in_front("sleep 601");
        terminal.press("C-z");
        terminal.shows("^Z[1] + Stopped*");
        terminal.line("clear; fg");
        terminal.is_in_front("sleep 601");
        terminal.press("C-c");
        terminal.line("exit 0");
        wait_until("the shell has ended", || env.listed_ids(&[]).is_empty());
        terminal.line("word");
        terminal.shows("got word");
        terminal.ends_with(0);
    }
    drop(terminal);
    env.assert_nothing_left();
}
