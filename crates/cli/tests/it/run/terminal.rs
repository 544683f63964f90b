//! `penfold run` at a terminal: job control, keys, window size and hangup are as without it.

use crate::support_e2::terminal::Terminal;
use crate::support_e2::{DEADLINE, Pen, eventually, left, levels};

#[test]
fn command_reads_and_writes_the_terminal() {
    let pen = Pen::new();
    let Some(terminal) = Terminal::open(&pen) else { return };
    for level in levels(&pen) {
        let script = "tty -s && echo terminal; read x && echo got $x; exit 4";
        terminal.line(&format!("$PF --contain {level} sh -c '{script}'"));
        terminal.shows("terminal");
        terminal.is_in_front(&format!("sh -c {script}"));
        terminal.line("hello");
        terminal.shows("got hello");
        terminal.ends_with(4);
    }
    drop(terminal);
    pen.assert_nothing_left();
}

#[test]
fn interrupt_key_stops_with_the_commands_code() {
    let pen = Pen::new();
    let Some(terminal) = Terminal::open(&pen) else { return };
    for level in levels(&pen) {
        terminal.line(&format!("$PF --contain {level} sh -c 'setsid -f sleep 600; echo up; exec sleep 600'"));
        terminal.shows("up");
        terminal.press("C-c");
        terminal.ends_with(130);
        assert!(eventually(DEADLINE, || !pen.is_running("sleep 600")));
    }
    drop(terminal);
    pen.assert_nothing_left();
}

/// Waits until penfold has taken its own signal of the key, too: two that are pending at once count as one.
#[track_caller]
fn front_has_it(terminal: &Terminal<'_>) {
    let tells = || terminal.screen().contains("penfold: stopping");
    assert!(eventually(DEADLINE, tells), "{}", terminal.screen());
}

#[test]
fn interrupt_key_reaches_each_process_once() {
    let pen = Pen::new();
    let Some(terminal) = Terminal::open(&pen) else { return };
    let script = "trap 'echo got; n=$((n+1)); [ -e stop ] && exit $n' INT; mkfifo g; echo up; while :; do read -r -t 0.2 <> g; done";
    terminal.line(&format!("$PF --grace 1m bash -c \"{}\"", script.replace('$', "\\$")));
    terminal.shows("up");
    terminal.press("C-c");
    terminal.shows("^Cgot");
    front_has_it(&terminal);
    // Time for a second one, if somebody sent it.
    crate::support_e2::pause(std::time::Duration::from_millis(500));
    assert_eq!(terminal.screen().matches("got").count() - 1, 1, "{}", terminal.screen());
    terminal.press("C-c");
    terminal.ends_with(137);
    drop(terminal);
    pen.assert_nothing_left();
}

#[test]
fn second_interrupt_key_kills() {
    let pen = Pen::new();
    let Some(terminal) = Terminal::open(&pen) else { return };
    for level in levels(&pen) {
        let script = "trap \"touch interrupted\" INT TERM; echo up; while :; do sleep 0.1; done";
        terminal.line(&format!("$PF --contain {level} --grace 10m bash -c '{script}'"));
        terminal.shows("up");
        terminal.press("C-c");
        let asked = || pen.path("work/interrupted").try_exists().unwrap();
        assert!(eventually(DEADLINE, asked), "{}", terminal.screen());
        front_has_it(&terminal);
        terminal.press("C-c");
        terminal.ends_with(137);
        std::fs::remove_file(pen.path("work/interrupted")).unwrap();
    }
    drop(terminal);
    pen.assert_nothing_left();
}

#[test]
fn suspended_command_goes_on_in_front_and_behind() {
    let pen = Pen::new();
    let Some(terminal) = Terminal::open(&pen) else { return };
    for level in levels(&pen) {
        terminal.line(&format!("$PF --contain {level} sh -c 'read x; echo got $x; exit 5'"));
        terminal.is_in_front("sh -c read x; echo got $x; exit 5");
        terminal.press("C-z");
        terminal.shows("[1]+  Stopped*");
        terminal.line("fg");
        // What is typed before that, the shell would take, or hand on in its own way.
        terminal.is_in_front("sh -c read x; echo got $x; exit 5");
        terminal.line("word");
        terminal.shows("got word");
        terminal.ends_with(5);

        terminal.line(&format!(
            "$PF --contain {level} sh -c 'echo up; until [ -e go ]; do sleep 0.05; done; exit 6'"
        ));
        terminal.shows("up");
        terminal.press("C-z");
        terminal.shows("[1]+  Stopped*");
        terminal.line("bg; touch go; wait %1");
        terminal.ends_with(6);
        std::fs::remove_file(pen.path("work/go")).unwrap();
    }
    drop(terminal);
    pen.assert_nothing_left();
}

#[test]
fn quit_key_goes_to_the_command() {
    let pen = Pen::new();
    let Some(terminal) = Terminal::open(&pen) else { return };
    terminal.line("ulimit -c 0; $PF sh -c 'echo up; exec sleep 600'");
    terminal.shows("up");
    terminal.press("C-\\");
    terminal.ends_with(131);
    drop(terminal);
    pen.assert_nothing_left();
}

#[test]
fn command_in_the_background_stops_when_it_reads() {
    let pen = Pen::new();
    let Some(terminal) = Terminal::open(&pen) else { return };
    terminal.line("$PF cat &");
    terminal.line("clear");
    // bash tells of a stopped job before its next prompt.
    let stopped = || {
        terminal.line("jobs");
        terminal.screen().contains("Stopped")
    };
    assert!(eventually(DEADLINE, stopped), "{}", terminal.screen());
    terminal.line("clear; fg");
    terminal.is_in_front("cat");
    terminal.line("text");
    terminal.shows("text");
    terminal.press("C-d");
    terminal.ends_with(0);
    drop(terminal);
    pen.assert_nothing_left();
}

#[test]
fn window_size_reaches_the_command() {
    let pen = Pen::new();
    let Some(terminal) = Terminal::open(&pen) else { return };
    for (level, width) in levels(&pen).iter().zip(["90", "95", "105"]) {
        terminal.line(&format!(
            "$PF --contain {level} bash -c 'trap \"stty size; exit 7\" WINCH; echo up; while :; do sleep 0.05; done'"
        ));
        terminal.shows("up");
        terminal.tmux(&["resize-window", "-x", width, "-y", "35"]);
        terminal.shows(&format!("35 {width}"));
        terminal.ends_with(7);
    }
    drop(terminal);
    pen.assert_nothing_left();
}

#[test]
fn shell_inside_has_its_own_job_control() {
    let pen = Pen::new();
    let Some(terminal) = Terminal::open(&pen) else { return };
    for level in levels(&pen) {
        terminal.line(&format!("$PF --contain {level} env PS1='inner> ' bash --norc --noprofile -i"));
        terminal.shows("inner>");
        terminal.line("sleep 600");
        terminal.is_in_front("sleep 600");
        terminal.press("C-c");
        terminal.line("echo in''ner $?");
        terminal.shows("inner 130");
        terminal.line("sleep 600");
        terminal.is_in_front("sleep 600");
        terminal.press("C-z");
        terminal.shows("[1]+  Stopped*");
        // The first is refused for the stopped job.
        terminal.line("exit 8; exit 8");
        terminal.ends_with(8);
        assert!(!pen.is_running("sleep 600"));
    }
    drop(terminal);
    pen.assert_nothing_left();
}

#[test]
fn editor_and_pager_are_usable() {
    let pen = Pen::new();
    let Some(terminal) = Terminal::open(&pen) else { return };
    if crate::support_e2::tool(&["vim", "--version"]) {
        terminal.line("$PF vim -u NONE -i NONE file");
        terminal.shows("~");
        terminal.press("i");
        terminal.line("some text");
        terminal.press("Escape");
        terminal.press("C-z");
        terminal.shows("[1]+  Stopped*");
        terminal.line("clear; fg");
        terminal.shows("some text");
        terminal.is_in_front("vim -u NONE -i NONE file");
        terminal.line(":wq");
        terminal.ends_with(0);
        assert_eq!(std::fs::read_to_string(pen.path("work/file")).unwrap(), "some text\n\n");
    }
    if crate::support_e2::tool(&["less", "--version"]) {
        terminal.line("seq 1000 > numbers; $PF less numbers");
        terminal.shows("5");
        terminal.press("G");
        terminal.shows("1000");
        terminal.press("q");
        terminal.ends_with(0);
    }
    drop(terminal);
    pen.assert_nothing_left();
}

#[test]
fn hangup_of_the_terminal_ends_all() {
    let pen = Pen::new();
    for level in levels(&pen) {
        let Some(terminal) = Terminal::open(&pen) else { return };
        let script = "trap '' HUP TERM; setsid -f sleep 600; (sleep 600 &); echo up; sleep 600; sleep 600; :";
        terminal.line(&format!("$PF --contain {level} bash -c \"{script}\""));
        terminal.shows("up");
        terminal.tmux(&["kill-session"]);
        drop(terminal);
        pen.assert_nothing_left();
    }
}

#[test]
fn killed_shell_ends_all() {
    let pen = Pen::new();
    let Some(terminal) = Terminal::open(&pen) else { return };
    terminal.line(
        "echo $$ > shell; $PF bash -c \"trap '' HUP TERM; setsid -f sleep 600; echo up; sleep 600; :\"",
    );
    terminal.shows("up");
    let shell = std::fs::read_to_string(pen.path("work/shell")).unwrap();
    left::Handle::of(shell.trim().parse().unwrap()).signal(rustix::process::Signal::KILL);
    drop(terminal);
    pen.assert_nothing_left();
}

#[test]
fn summary_of_a_run_in_the_background_waits_for_the_terminal() {
    let pen = Pen::new();
    let Some(terminal) = Terminal::open(&pen) else { return };
    terminal.line("stty tostop; $PF sh -c 'sleep 600 & exit 3' &");
    // Where background output stops a process, it stops penfold, but not before everything is gone.
    let stopped = || {
        terminal.line("jobs");
        terminal.screen().contains("Stopped")
    };
    assert!(eventually(DEADLINE, stopped), "{}", terminal.screen());
    assert!(!pen.is_running("sleep 600"));
    terminal.line("clear; stty -tostop; fg");
    terminal.ends_with(3);
    drop(terminal);
    pen.assert_nothing_left();
}
