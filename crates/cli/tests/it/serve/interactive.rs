//! Terminals and input of commands on a server.

use std::process::Stdio;

use rustix::process::Signal;

use super::Server;
use super::client::{servers, words};
use crate::support::{Process, Running, Terminal, TestEnv, wait_until};

/// spec: 15.12
#[test]
fn input_of_an_exec_is_passed_on_as_it_comes() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--name", "web", "sleep", "4784"]);
    for (_server, flags) in &servers(&env) {
        let exec = |input: &str, command: &[&str]| {
            let penfold = env.penfold(words(flags, &[&["exec", "-i", "web"], command].concat()));
            let mut shell = env.command("sh");
            shell.envs(penfold.get_envs().filter_map(|(key, value)| Some((key, value?))));
            // Nobody keeps the whole input.
            let script = format!("{input} | {{ ulimit -v 400000; exec \"$@\"; }}");
            shell.args(["-c", &script, "sh"]).arg(penfold.get_program()).args(penfold.get_args());
            Running::start(&mut shell).finish()
        };
        let done = exec("head -c 100000000 /dev/zero", &["wc", "-c"]).with_code(0);
        assert_eq!(done.out(), "100000000\n");
        assert_eq!(exec("echo one", &["sh", "-c", "cat; exit 3"]).with_code(3).out(), "one\n");
        // The command reads no more, and ends before its input.
        assert_eq!(exec("yes", &["head", "-1"]).with_code(0).out(), "y\n");
        // An answer comes before the end of the input.
        let command =
            ["exec", "-i", "web", "sh", "-c", "read a; echo got $a; read a; echo then $a; read a || exit 7"];
        let mut penfold = env.penfold(words(flags, &command));
        let mut asked = Running::start(penfold.stdin(Stdio::piped()));
        for word in ["one", "two"] {
            asked.say(&format!("{word}\n"));
            asked.hear(word, 1);
        }
        asked.hang_up();
        assert_eq!(asked.finish().with_code(7).out(), "got one\nthen two\n");
    }
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
}

/// spec: 15.12
#[test]
fn an_exec_whose_input_may_have_a_gap_is_killed() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--name", "web", "sleep", "4786"]);
    let server = Server::start(&env, &[]);
    let host = server.host();
    let mut penfold = env.penfold(["--host", &host, "exec", "-i", "web", "sh", "-c", "echo $$; exec cat"]);
    let mut asked = Running::start(penfold.stdin(Stdio::piped()));
    asked.say("a part");
    asked.hear("a part", 1);
    let command = Process::find(asked.heard().lines().next().unwrap().parse().unwrap()).unwrap();
    server.running.signal(Signal::KILL);
    server.running.finish().with_code(137);
    let server = Server::start(&env, &[]);
    let done = asked.finish().with_code(120);
    assert!(done.err().contains("lost the connection"), "{}", done.err());
    assert!(command.has_ended(), "it would wait for the rest for ever");
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    server.end();
}

/// spec: 15.12.1
#[test]
fn a_terminal_of_a_server_is_used_as_one_of_this_host() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--name", "web", "sleep", "4787"]);
    let Some(terminal) = Terminal::open(&env) else { return };
    let server = Server::start(&env, &[]);
    let penfold = format!("$PENFOLD --root $ROOT --host {}", server.host());
    // A shell with the size and the kind of this terminal, whose keys are signals there.
    terminal.line(
        &format!("{penfold} exec -it -e PS1='there> ' web bash --norc")
            .replace("$PENFOLD", "TERM=vt220 $PENFOLD"),
    );
    terminal.shows("there>");
    terminal.line("stty size; echo $TERM");
    terminal.shows("30 100");
    terminal.shows("vt220");
    terminal.tmux(&["resize-window", "-x", "90", "-y", "25"]);
    terminal.line("clear; until test \"$(stty size)\" = '25 90'; do :; done; echo resized-$((1 + 1))");
    terminal.shows("resized-2");
    terminal.line("clear; sleep 4788");
    wait_until("it runs there", || env.is_running("sleep 4788"));
    terminal.press("C-c");
    terminal.shows("^C");
    terminal.line("echo code-$?");
    terminal.shows("code-130");
    terminal.line("exit 5");
    terminal.ends_with(5);
    drop(terminal);
    env.call(["--host", &server.host(), "attach", "web"]).refused(125, "terminal");
    for line in [&["exec", "-it", "web", "true"][..], &["run", "-it", "true"]] {
        env.call(["--host", &server.host()].iter().chain(line)).refused(125, "not a terminal");
    }
    env.call(["--host", &server.host(), "run", "-t", "echo", "all of it"]).with_code(0);
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    sandbox.call(&env, &["rm", "ID"]).with_code(0);
    server.end();
    env.assert_nothing_left();
}

/// spec: 15.12.1
#[test]
fn a_sandbox_of_a_server_has_a_terminal_that_can_be_left() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let server = Server::start(&env, &[]);
    let penfold = format!("$PENFOLD --root $ROOT --host {}", server.host());
    // A sandbox of its own, of which nothing stays.
    terminal.line(&format!("{penfold} run -it -e PS1='fresh> ' bash --norc"));
    terminal.shows("fresh>");
    terminal.line("exit 6");
    terminal.ends_with(6);
    // One that is left, and attached to again.
    let id = env.call([
        "--host",
        &server.host(),
        "run",
        "-d",
        "-t",
        "--name",
        "shell",
        "-e",
        "PS1=kept> ",
        "bash",
        "--norc",
    ]);
    let id = id.with_code(0).out();
    terminal.line(&format!("{penfold} attach shell"));
    terminal.shows("kept>");
    terminal.press("C-p");
    terminal.press("C-q");
    let left = format!("penfold: left {}; the sandbox keeps running", id.trim());
    terminal.wait_until("it has left", |screen| screen.contains(&left));
    terminal.ends_with(0);
    terminal.line(&format!("{penfold} attach shell"));
    terminal.shows("kept>");
    terminal.line("exit 7");
    terminal.ends_with(7);
    drop(terminal);
    env.call(["rm", "shell"]).with_code(0);
    server.end();
    env.assert_nothing_left();
}

/// spec: 15.12.1
#[test]
fn a_viewer_that_a_signal_ends_leaves_its_terminal_as_it_was() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let server = Server::start(&env, &[]);
    let words = ["run", "-d", "-t", "--name", "shell", "-e", "PS1=kept> ", "bash", "--norc"];
    env.call(words).with_code(0);
    let there = format!("--host {}", server.host());
    // A shell without job control: another one restores the terminal itself.
    let script = "stty -g > before; sh -c 'echo $$ > pid; exec $PENFOLD --root $ROOT $* attach shell' sh $*; stty -g > after";
    std::fs::write(env.path("work/script"), script).unwrap();
    for place in ["", &there] {
        terminal.line(&format!("sh script {place}"));
        terminal.shows("kept>");
        let pid = std::fs::read_to_string(env.path("work/pid")).unwrap();
        let viewer = Process::find(pid.trim().parse().unwrap()).unwrap();
        viewer.signal(Signal::TERM);
        viewer.await_end();
        terminal.ends_with(0);
        let modes = |file: &str| std::fs::read_to_string(env.path("work").join(file)).unwrap();
        assert_eq!(modes("before"), modes("after"), "{place}");
    }
    drop(terminal);
    env.call(["rm", "-f", "shell"]).with_code(0);
    server.end();
    env.assert_nothing_left();
}

/// spec: 15.12.2
#[test]
fn a_sandbox_that_is_removed_under_its_client_counts_as_killed() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    let host = server.host();
    let removed = |id: &str, running: Running| {
        env.call(["rm", "-f", id]).with_code(0);
        let done = running.finish().with_code(137);
        // The client gets the end of its command, or finds the sandbox removed.
        let said = done.err();
        assert!(said.is_empty() || said.contains("was killed and removed"), "{said}");
    };
    for flags in [&["exec"][..], &["exec", "-i"]] {
        let sandbox = env.detach(["sleep", "4789"]);
        let line =
            [&["--host", &host], flags, &[&sandbox.id, "sh", "-c", "echo up; exec sleep 4790"]].concat();
        let mut command = env.penfold(line);
        let running = Running::start(command.stdin(Stdio::piped()));
        running.hear("up", 1);
        removed(&sandbox.id, running);
    }
    server.end();
    env.assert_nothing_left();
}

/// spec: 15.12.1
#[test]
fn a_terminal_of_a_server_goes_on_with_the_next_server_and_ends_with_its_client() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let sandbox = env.detach(["--name", "web", "sleep", "4791"]);
    let server = Server::start(&env, &[]);
    let host = server.host();
    terminal.line(&format!("$PENFOLD --root $ROOT --host {host} exec -it -e PS1='there> ' web bash --norc"));
    terminal.shows("there>");
    terminal.line("clear; X=kept; sleep 4792 & echo $! > job");
    wait_until("its job runs", || env.is_running("sleep 4792"));
    server.running.signal(Signal::KILL);
    server.running.finish().with_code(137);
    let server = Server::start(&env, &[]);
    terminal.line("clear; until test \"$X\" = kept; do :; done; echo still-$X-$((1 + 1))");
    terminal.shows("still-kept-2");
    // The terminal is closed: nobody is left who could end the command.
    drop(terminal);
    wait_until("the command has ended with its client", || !env.is_running("sleep 4792"));
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    sandbox.call(&env, &["rm", "ID"]).with_code(0);
    server.end();
    env.assert_nothing_left();
}

/// spec: 13.16.1, 15.12.1
#[test]
fn an_exec_with_input_ends_with_its_client() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--name", "web", "sleep", "4793"]);
    let server = Server::start(&env, &[]);
    let mut command =
        env.penfold(["--host", &server.host(), "exec", "-i", "web", "sh", "-c", "echo up; sleep 4794"]);
    let client = Running::start(command.stdin(Stdio::piped()));
    client.hear("up", 1);
    wait_until("it runs", || env.is_running("sleep 4794"));
    client.signal(Signal::KILL);
    client.finish().with_code(137);
    wait_until("the command has ended with its client", || !env.is_running("sleep 4794"));
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    sandbox.call(&env, &["rm", "ID"]).with_code(0);
    server.end();
    env.assert_nothing_left();
}

/// spec: 15.12.1
#[test]
fn a_viewer_gets_the_code_of_a_sandbox_that_ends_with_its_supervisor() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    let sandbox = env.detach(["-t", "sh", "-c", "while :; do echo tick; sleep 0.02; done"]);
    let viewer = env.begin(["--host", &server.host(), "attach", "--no-stdin", &sandbox.id]);
    viewer.hear("tick", 1);
    sandbox.supervisors_now().pop().unwrap().signal(Signal::KILL);
    viewer.finish().with_code(137);
    sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
    server.end();
    env.assert_nothing_left();
}
