//! `penfold run` at a terminal: job control, keys, window size and hangup work as without penfold.

use rustix::process::Signal;

use super::launcher::{SERVE, await_started, launcher};
use crate::support::{Level, Process, Terminal, TestEnv, has_program, wait_until};

#[test]
fn command_reads_and_writes_the_terminal() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    for level in env.levels().into_iter().map(Level::word) {
        let script = "tty -s && echo terminal; read x && echo got $x; exit 4";
        terminal.line(&format!("$PF --contain {level} sh -c '{script}'"));
        terminal.shows("terminal");
        terminal.is_in_front(&format!("sh -c {script}"));
        terminal.line("hello");
        terminal.shows("got hello");
        terminal.ends_with(4);
    }
    drop(terminal);
    env.assert_nothing_left();
}

#[test]
fn interrupt_key_stops_with_the_commands_code() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    for level in env.levels().into_iter().map(Level::word) {
        terminal.line(&format!("$PF --contain {level} sh -c 'setsid -f sleep 600; echo up; exec sleep 600'"));
        terminal.shows("up");
        await_started(std::process::id().try_into().unwrap());
        terminal.press("C-c");
        terminal.ends_with(130);
        wait_until("the stray is gone", || !env.is_running("sleep 600"));
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// spec: 8.6
#[test]
fn interrupt_key_breaks_a_loop_of_the_shell() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    for level in env.levels().into_iter().map(Level::word) {
        terminal
            .line(&format!("for i in 1 2 3; do $PF --contain {level} sh -c 'echo up; exec sleep 600'; done"));
        terminal.shows("up");
        terminal.is_in_front("sleep 600");
        await_started(std::process::id().try_into().unwrap());
        terminal.press("C-c");
        terminal.ends_with(130);
        assert!(!env.is_running("sleep 600"));
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// Waits until penfold has handled the signal of the key: two that are pending at once count as one.
#[track_caller]
fn await_stopping(terminal: &Terminal<'_>) {
    terminal.wait_until("penfold is stopping", |screen| screen.contains("penfold: stopping"));
}

/// The launcher of the only sandbox, which a shell below this process has started.
fn only_launcher() -> Process {
    launcher(std::process::id().try_into().unwrap())
}

/// Waits until penfold is stopped by the terminal, and the shell reports the job.
#[track_caller]
fn await_stopped_job(terminal: &Terminal<'_>) {
    let launcher = only_launcher();
    wait_until("penfold is stopped", || launcher.state() == Some('T'));
    terminal.shows("<0>");
    terminal.line("jobs");
    terminal.shows("[1]+  Stopped*");
    terminal.shows("<0>");
}

/// Stops the job in front, and waits for the prompt: a shell that sets up its terminal loses what is typed before.
#[track_caller]
fn suspend(terminal: &Terminal<'_>, prompt: &str) {
    terminal.press("C-z");
    terminal.shows("[1]+  Stopped*");
    terminal.shows(prompt);
}

/// spec: 8.3
#[test]
fn interrupt_key_reaches_each_process_once() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    std::fs::write(env.path("work/serve"), format!("trap 'echo got' INT; trap 'echo marked' USR1; {SERVE}"))
        .unwrap();
    terminal.line("$PF --stop-on-interrupt --grace 1m bash serve");
    terminal.shows("ready");
    terminal.press("C-c");
    terminal.shows("^Cgot");
    await_stopping(&terminal);
    // An interrupt that penfold forwards would reach the command before this signal.
    only_launcher().signal(Signal::USR1);
    terminal.shows("marked");
    assert_eq!(terminal.screen().matches("got").count(), 1, "{}", terminal.screen());
    terminal.press("C-c");
    terminal.ends_with(137);
    drop(terminal);
    env.assert_nothing_left();
}

/// spec: 1.2, 1.2.1
#[test]
fn second_interrupt_key_kills_where_the_first_stops() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    for level in env.levels().into_iter().map(Level::word) {
        let script = "trap \"touch interrupted\" INT TERM; echo up; while :; do sleep 0.1; done";
        terminal.line(&format!("$PF --contain {level} --stop-on-interrupt --grace 10m bash -c '{script}'"));
        terminal.shows("up");
        await_started(std::process::id().try_into().unwrap());
        terminal.press("C-c");
        wait_until("the command is asked", || env.path("work/interrupted").try_exists().unwrap());
        await_stopping(&terminal);
        terminal.press("C-c");
        terminal.ends_with(137);
        std::fs::remove_file(env.path("work/interrupted")).unwrap();
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// spec: 8.7
#[test]
fn modes_of_the_terminal_are_put_back_unless_the_command_succeeds() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let modes = |file: &str| std::fs::read_to_string(env.path("work").join(file)).unwrap();
    for level in env.levels().into_iter().map(Level::word) {
        let run = format!("stty -a > before; $PF --contain {level}");
        // The shell keeps what a job that has exited has made of its terminal.
        for (words, script, code) in [
            ("", "stty raw -echo; exit 3", 3),
            ("--timeout 1", "stty raw -echo; : > raw; exec sleep 600", 124),
        ] {
            terminal.line(&format!("{run} {words} sh -c '{script}'; code=$?; stty -a > after; (exit $code)"));
            terminal.ends_with(code);
            assert_eq!(modes("after"), modes("before"), "{level} {script}");
        }
        std::fs::remove_file(env.path("work/raw")).unwrap();
        terminal.line(&format!("{run} stty -echo; stty -a > after; stty echo; (exit 7)"));
        // Before the line is typed the prompt has another code.
        terminal.ends_with(7);
        assert!(modes("before").contains(" echo ") && modes("after").contains(" -echo "), "{level}");
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// spec: 8.3
#[test]
fn suspended_command_goes_on_in_front_and_behind() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    for level in env.levels().into_iter().map(Level::word) {
        terminal.line(&format!("$PF --contain {level} sh -c 'read x; echo got $x; exit 5'"));
        terminal.is_in_front("sh -c read x; echo got $x; exit 5");
        suspend(&terminal, "<148>");
        terminal.line("fg");
        // What is typed before that goes to the shell.
        terminal.is_in_front("sh -c read x; echo got $x; exit 5");
        terminal.line("word");
        terminal.shows("got word");
        terminal.ends_with(5);

        terminal.line(&format!(
            "$PF --contain {level} sh -c 'echo up; until [ -e go ]; do sleep 0.05; done; exit 6'"
        ));
        terminal.shows("up");
        suspend(&terminal, "<148>");
        // A job that has ended is forgotten with the shell's next command: nothing ends it before the shell waits.
        terminal.line("bg; wait $!");
        wait_until("it runs again", || env.running("sleep 0.05").iter().any(|one| one.state() == Some('S')));
        std::fs::write(env.path("work/go"), "").unwrap();
        terminal.ends_with(6);
        std::fs::remove_file(env.path("work/go")).unwrap();
    }
    drop(terminal);
    env.assert_nothing_left();
}

#[test]
fn quit_key_goes_to_the_command() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    terminal.line("ulimit -c 0; $PF sh -c 'echo up; exec sleep 600'");
    terminal.shows("up");
    terminal.press("C-\\");
    terminal.ends_with(131);
    drop(terminal);
    env.assert_nothing_left();
}

#[test]
fn command_in_the_background_stops_when_it_reads() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    terminal.line("$PF cat &");
    wait_until("cat is stopped", || env.running("cat").iter().any(|cat| cat.state() == Some('T')));
    await_stopped_job(&terminal);
    terminal.line("clear; fg");
    terminal.is_in_front("cat");
    terminal.line("text");
    terminal.shows("text");
    terminal.press("C-d");
    terminal.ends_with(0);
    drop(terminal);
    env.assert_nothing_left();
}

/// spec: 8.3
#[test]
fn window_size_reaches_the_command() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    for (level, width) in env.levels().into_iter().map(Level::word).zip(["90", "95", "105"]) {
        terminal.line(&format!(
            "$PF --contain {level} bash -c 'trap \"stty size; exit 7\" WINCH; echo up; while :; do sleep 0.05; done'"
        ));
        terminal.shows("up");
        terminal.tmux(&["resize-window", "-x", width, "-y", "35"]);
        terminal.shows(&format!("35 {width}"));
        terminal.ends_with(7);
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// spec: 8.3
#[test]
fn shell_inside_has_its_own_job_control() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    for level in env.levels().into_iter().map(Level::word) {
        terminal.line(&format!("$PF --contain {level} env PS1='inner> ' bash --norc --noprofile -i"));
        terminal.shows("inner>");
        terminal.line("sleep 600");
        terminal.is_in_front("sleep 600");
        terminal.press("C-c");
        terminal.shows("inner>");
        terminal.line("echo in''ner $?");
        terminal.shows("inner 130");
        terminal.shows("inner>");
        terminal.line("sleep 600");
        terminal.is_in_front("sleep 600");
        suspend(&terminal, "inner>");
        // bash refuses the first `exit` because of the stopped job.
        terminal.line("exit 8; exit 8");
        terminal.ends_with(8);
        assert!(!env.is_running("sleep 600"));
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// A shell inside that suspends itself, in a group of its own: who waits for penfold gets the terminal.
/// spec: 8.8
#[test]
fn shell_inside_suspends_itself_and_goes_on() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let shell = "bash --norc --noprofile -i";
    for level in env.levels() {
        terminal.line(&format!("$PF --contain {} env PS1='inner> ' {shell}", level.word()));
        for _ in 0..2 {
            terminal.shows("inner>");
            terminal.is_in_front(shell);
            terminal.line("suspend -f");
            terminal.shows("[1]+  Stopped*");
            terminal.shows("<147>");
            // The shell inside would show its own prompt before.
            terminal.line("clear; (exit 9)");
            terminal.shows("<9>");
            terminal.line("clear; fg");
            terminal.is_in_front(shell);
            terminal.line("clear");
        }
        terminal.shows("inner>");
        terminal.line("exit 5");
        terminal.ends_with(5);
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// Waits until this command and the launcher of its sandbox are stopped, and gives both.
#[track_caller]
fn await_suspended(env: &TestEnv, terminal: &Terminal<'_>, command: &str) -> [Process; 2] {
    terminal.shows("[1]+  Stopped*");
    terminal.shows("<147>");
    let launcher = only_launcher();
    let leader = env.running(command).pop().unwrap();
    assert_eq!((launcher.state(), leader.state()), (Some('T'), Some('T')));
    [launcher, leader]
}

/// spec: 8.8
#[test]
fn launcher_that_has_stopped_with_its_command_goes_on_with_it() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let command = "sh -c kill -STOP $$; exit 6";
    for level in env.levels() {
        let run = |words: &str| {
            terminal.line(&format!("$PF --contain {} {words} sh -c 'kill -STOP $$; exit 6'", level.word()));
            await_suspended(&env, &terminal, command)
        };
        run("");
        terminal.line("fg");
        terminal.ends_with(6);
        // Time enough for the shell to say that the job is stopped.
        let limited = if level == Level::Subreaper { Some(("--timeout 6", None, "Exit 124")) } else { None };
        let told = [("", Some(Signal::CONT), "Exit 6"), ("", Some(Signal::KILL), "Killed")];
        for (words, signal, end) in told.into_iter().chain(limited) {
            let [launcher, leader] = run(words);
            if let Some(signal) = signal {
                leader.signal(signal);
            }
            launcher.await_end();
            terminal.line("clear; jobs");
            terminal.shows(&format!("[1]+  {end}*"));
            terminal.line("true");
            terminal.ends_with(0);
        }
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// What stops both stops them once.
/// spec: 8.8
#[test]
fn job_that_is_stopped_as_a_whole_goes_on_at_once() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let script = ": > up; until [ -e go ]; do sleep 0.05; done; exit 6";
    for level in env.levels().into_iter().map(Level::word) {
        terminal.line(&format!("$PF --contain {level} sh -c '{script}' &"));
        wait_until("the command runs", || env.path("work/up").try_exists().unwrap());
        terminal.line("clear; kill -STOP %1");
        await_stopped_job(&terminal);
        terminal.line("clear; touch go; fg");
        terminal.ends_with(6);
        for file in ["work/up", "work/go"] {
            std::fs::remove_file(env.path(file)).unwrap();
        }
    }
    drop(terminal);
    env.assert_nothing_left();
}

#[test]
fn editor_and_pager_are_usable() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    if has_program(&["vim", "--version"]) {
        terminal.line("$PF vim -u NONE -i NONE file");
        terminal.shows("~");
        terminal.press("i");
        terminal.line("some text");
        terminal.press("Escape");
        suspend(&terminal, "<148>");
        terminal.line("clear; fg");
        terminal.shows("some text");
        terminal.is_in_front("vim -u NONE -i NONE file");
        terminal.line(":wq");
        terminal.ends_with(0);
        assert_eq!(std::fs::read_to_string(env.path("work/file")).unwrap(), "some text\n\n");
    }
    if has_program(&["less", "--version"]) {
        terminal.line("seq 1000 > numbers; $PF less numbers");
        terminal.shows("5");
        terminal.press("G");
        terminal.shows("1000");
        terminal.press("q");
        terminal.ends_with(0);
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// spec: 1.4
#[test]
fn hangup_of_the_terminal_ends_all() {
    let env = TestEnv::new();
    for level in env.levels().into_iter().map(Level::word) {
        let Some(terminal) = Terminal::open(&env) else { return };
        let script = "trap '' HUP TERM; setsid -f sleep 600; (sleep 600 &); echo up; sleep 600; sleep 600; :";
        terminal.line(&format!("$PF --contain {level} bash -c \"{script}\""));
        terminal.shows("up");
        terminal.tmux(&["kill-session"]);
        wait_until("all has ended", || !env.is_running("sleep 600"));
        drop(terminal);
        env.assert_nothing_left();
    }
}

/// The leader of the session keeps SIGHUP to itself, as `su - USER` does.
/// spec: 1.4.1
#[test]
fn hangup_that_reaches_nobody_ends_what_has_the_terminal() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--name", "other", "--", "sleep", "603"]);
    let runs = env.levels().into_iter().map(|level| format!("$PF --contain {} sleep 600", level.word()));
    let exec = format!("$PENFOLD --root $ROOT exec {} sleep 600", sandbox.id);
    let session = |run: String| {
        let Some(terminal) = Terminal::open(&env) else { return };
        // Neither nohup(1) nor `keep` is concerned.
        let keep = "$PF -q --on-owner-exit keep env --ignore-signal=HUP sleep 602";
        terminal.line(&format!(
            "trap : HUP; (trap '' HUP; $PF -q sleep 601; :) & (trap : HUP; {keep}; :) & clear"
        ));
        wait_until("both run", || env.is_running("sleep 601") && env.is_running("sleep 602"));
        let others = ["sleep 601", "sleep 602"].map(|command| env.running(command).pop().unwrap());
        terminal.line(&run);
        wait_until("the command runs", || env.is_running("sleep 600"));
        terminal.tmux(&["kill-session"]);
        wait_until("the command has ended", || !env.is_running("sleep 600"));
        assert!(!others.iter().any(Process::has_ended), "{run}");
        let kept: Vec<String> = env.listed_ids(&[]).into_iter().filter(|id| *id != sandbox.id).collect();
        env.call(["kill"].into_iter().chain(kept.iter().map(String::as_str))).with_code(0);
    };
    runs.for_each(session);
    let at_terminal = exec.replacen("exec", "exec -t", 1);
    [exec, at_terminal].into_iter().for_each(session);
    assert!(env.is_running("sleep 603"), "a client is gone, not its sandbox");
    env.call(["rm", "-f", &sandbox.id]).with_code(0);
    env.assert_nothing_left();
}

/// spec: 1.4
#[test]
fn killed_shell_ends_all() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    terminal.line(
        "echo $$ > shell; $PF bash -c \"trap '' HUP TERM; setsid -f sleep 600; echo up; sleep 600; :\"",
    );
    terminal.shows("up");
    let shell = std::fs::read_to_string(env.path("work/shell")).unwrap();
    Process::find(shell.trim().parse().unwrap()).unwrap().signal(Signal::KILL);
    wait_until("all has ended", || !env.is_running("sleep 600") && env.find("bash -c trap").is_empty());
    drop(terminal);
    env.assert_nothing_left();
}

#[test]
fn summary_of_a_run_in_the_background_waits_for_the_terminal() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    terminal.line("stty tostop; $PF sh -c 'sleep 600 & : > started; exit 3' &");
    // With `tostop`, output in the background stops penfold, but only after all members are gone.
    wait_until("penfold is started", || env.path("work/started").try_exists().unwrap());
    await_stopped_job(&terminal);
    assert!(!env.is_running("sleep 600"));
    terminal.line("clear; stty -tostop; fg");
    terminal.ends_with(3);
    drop(terminal);
    env.assert_nothing_left();
}

/// Penfold has the terminal open for itself.
#[test]
fn command_gets_no_descriptor_of_penfold() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    for level in env.levels() {
        terminal.line(&format!("$PF --contain {} sh -c 'ls -l /proc/self/fd > fds; exit 4'", level.word()));
        terminal.ends_with(4);
        let fds = std::fs::read_to_string(env.path("work/fds")).unwrap();
        assert!(fds.contains("/dev/pts/") && !fds.contains("/dev/tty"), "{level:?}: {fds}");
        // The three standard streams, and the directory that `ls` reads.
        assert_eq!(fds.matches(" -> ").count(), 4, "{level:?}: {fds}");
    }
    drop(terminal);
    env.assert_nothing_left();
}
