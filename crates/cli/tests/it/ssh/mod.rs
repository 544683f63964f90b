//! `--host ssh://`: verbs on another host, here behind a private sshd on loopback.

mod promptness;
mod sshd;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use self::sshd::{Link, Sshd, command, free_port};
use crate::support::{Finished, Process, Running, Sandbox, Terminal, TestEnv, penfold, wait_until};

/// Runs `penfold` with these words at a host to its end.
#[track_caller]
fn call(env: &TestEnv, host: &str, words: &[&str]) -> Finished {
    Running::start(&mut command(env, host, words)).finish()
}

/// spec: 32.1, 32.2
#[test]
fn streams_and_exit_codes_are_those_of_this_host() {
    let env = TestEnv::new();
    let Some(sshd) = Sshd::start(&env) else { return };
    let host = sshd.host();
    let script = "echo out; echo err >&2; setsid sleep 1000 > /dev/null 2>&1 & exit 3";
    let done = call(&env, &host, &["run", "--", "sh", "-c", script]).with_code(3);
    assert_eq!(done.out(), "out\n");
    assert!(done.err().starts_with("err\n") && done.err().contains("verified gone"), "{}", done.err());
    assert!(!env.is_running("sleep 1000"));
    for (words, code) in [
        (&["run", "sh", "-c", "exit 255"][..], 255),
        (&["run", "/no/such/program"], 127),
        (&["run", "--no-such-option"], 125),
        (&["run", "--timeout", "100ms", "sleep", "1000"], 124),
        (&["stop", "nobody"], 3),
        (&["ps", "--no-such-option"], 2),
        (&["run", "--report", "-", "true"], 0),
    ] {
        assert_eq!(call(&env, &host, words).code(), Some(code), "{words:?}");
    }
    assert_eq!(call(&env, &host, &["run", "sh", "-c", "kill -9 $$"]).signal(), Some(9));
    let count = std::fs::read_to_string(env.path("work/sshd/count")).unwrap().lines().count();
    // The wrong option of `run` is refused on this host.
    assert_eq!(count, 7, "one ssh for each command");
    let id = call(&env, &host, &["run", "-d", "--name", "web", "sh", "-c", "echo hello; sleep 1000"])
        .with_code(0)
        .out();
    let sandbox = Sandbox::printed(&env, &id);
    wait_until("it is heard", || call(&env, &host, &["logs", "web"]).with_code(0).out() == "hello\n");
    assert_eq!(call(&env, &host, &["exec", "web", "sh", "-c", "exit 7"]).code(), Some(7));
    assert!(call(&env, &host, &["tree", "web"]).with_code(0).out().contains("sleep"));
    let members = env.running("sleep 1000");
    assert_eq!(members.len(), 1);
    call(&env, &host, &["stop", "web"]).with_code(0);
    sandbox.assert_gone(&members);
    call(&env, &host, &["rm", "web"]).with_code(0);
    env.assert_nothing_left();
}

/// spec: 32.2
#[test]
fn standard_input_and_words_arrive_as_they_are() {
    let env = TestEnv::new();
    let Some(sshd) = Sshd::start(&env) else { return };
    let host = sshd.host();
    let given: Vec<u8> =
        (0..3_000_000_u32).map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    std::fs::write(env.path("work/given"), &given).unwrap();
    let mut cat = command(&env, &host, &["run", "cat"]);
    cat.stdin(std::fs::File::open(env.path("work/given")).unwrap());
    cat.stdout(std::fs::File::create(env.path("work/taken")).unwrap());
    Running::spawn(&mut cat).finish().with_code(0);
    assert!(std::fs::read(env.path("work/taken")).unwrap() == given, "the bytes differ");
    // A command that reads nothing ends all the same.
    let mut head = command(&env, &host, &["run", "head", "-c", "1"]);
    head.stdin(std::fs::File::open(env.path("work/given")).unwrap());
    Running::start(&mut head).finish().with_code(0);
    let odd = ["a b", "", "it's", "$HOME `x` \\", "new\nline", "--host", "ü"];
    let words = [&["run", "--", "printf", "<%s>"][..], &odd].concat();
    let expected = format!("<{}>", odd.join("><"));
    assert_eq!(call(&env, &host, &words).with_code(0).out(), expected);
    let mut printf = command(&env, &host, &["run", "--", "printf", "%s"]);
    printf.arg(OsStr::from_bytes(b"\xff\xfe"));
    assert_eq!(Running::start(&mut printf).finish().with_code(0).out, b"\xff\xfe");
    // What the login shell prints before is no part of the answer.
    let mut noisy = command(&env, &host, &["run", "echo", "x"]);
    noisy.env("NOISE", "Welcome!");
    assert_eq!(Running::start(&mut noisy).finish().with_code(0).out(), "x\n");
    // A reader of the output that goes away ends the command.
    let mut flood = command(&env, &host, &["run", "yes"]);
    let mut running = flood.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(running.stdout.take());
    assert!(!running.wait().unwrap().success());
    wait_until("the flood has ended", || !env.is_running("yes"));
    env.assert_nothing_left();
}

/// spec: 32.3
#[test]
fn signals_reach_the_command_there() {
    let env = TestEnv::new();
    let Some(sshd) = Sshd::start(&env) else { return };
    let script = "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let running = Running::start(&mut command(&env, &sshd.host(), &["run", "sh", "-c", script]));
    running.hear("ready", 1);
    running.signal(Signal::TERM);
    let done = running.finish();
    assert!(done.out().contains("caught"), "{} {}", done.out(), done.err());
    assert!(done.err().contains("stopped by SIGTERM"), "{}", done.err());
    env.assert_nothing_left();
}

/// spec: 8.9.1, 32.2
#[test]
fn flags_that_a_server_refuses_are_followed_there() {
    let env = TestEnv::new();
    let Some(sshd) = Sshd::start(&env) else { return };
    let (host, root) = (sshd.host(), env.root().display().to_string());
    let started = env.path("work/started").display().to_string();
    call(&env, &host, &["run", "--unit", "user", "--contain", "subreaper", "touch", &started])
        .refused(125, "cannot give the sandbox a scope");
    let own = std::fs::read_link("/proc/self/ns/ipc").unwrap().display().to_string();
    let there =
        call(&env, &host, &["run", "--ipc", "private", "readlink", "/proc/self/ns/ipc"]).with_code(0).out();
    assert!(there.starts_with("ipc:") && there.trim() != own, "{there}");
    let failed = env.path("work/failed").display().to_string();
    let script = format!("[ -e {failed} ] || {{ touch {failed}; exit 3; }}; exec sleep 1000");
    call(&env, &host, &["run", "-d", "--name", "again", "--restart", "on-failure:1", "sh", "-c", &script])
        .with_code(0);
    wait_until("the second life runs", || env.is_running("sleep 1000"));
    assert_eq!(env.call(["inspect", "again"]).json()[0]["restarts"], 1);
    env.call(["rm", "-f", "again"]).with_code(0);
    let outside = format!("{} --root {root} run -d --outside --name out -- sleep 1001", penfold().display());
    let done = call(&env, &host, &["run", "--allow-outside", "sh", "-c", &outside]).with_code(0);
    assert!(env.is_running("sleep 1001"), "{} {}", done.out(), done.err());
    env.call(["rm", "-f", "out"]).with_code(0);
    let script = "trap 'echo caught' INT; echo ready; while :; do sleep 0.05; done";
    let words = ["run", "--stop-on-interrupt", "sh", "-c", script];
    let running = Running::start(&mut command(&env, &host, &words));
    running.hear("ready", 1);
    running.signal(Signal::INT);
    let done = running.finish();
    assert!(done.err().contains("stopped by SIGINT"), "{}", done.err());
    assert!(!env.path("work/started").try_exists().unwrap());
    env.assert_nothing_left();
}

/// spec: 32.4
#[test]
fn death_of_the_caller_or_the_connection_ends_what_runs_there() {
    let env = TestEnv::new();
    let Some(sshd) = Sshd::start(&env) else { return };
    for way in ["near", "ssh", "far", "verb", "link", "session"] {
        let link = Link::new(sshd.port(), Duration::from_millis(2));
        let script = "setsid sleep 1000 > /dev/null 2>&1 & echo ready; exec sleep 2000";
        let mut run = command(&env, &link.host(), &["run", "sh", "-c", script]);
        let running = Running::start(&mut run);
        running.hear("ready", 1);
        let stands = || ["sleep 1000", "sleep 2000"].map(|text| env.running(text));
        wait_until("the tree stands", || stands().iter().all(|found| found.len() == 1));
        let members = stands();
        let named = |text: &str| -> Process {
            let found = env.processes().into_iter().find(|one| one.command_line().starts_with(text));
            found.unwrap_or_else(|| panic!("{way}: no {text}"))
        };
        match way {
            "near" => running.signal(Signal::KILL),
            "ssh" => named("/usr/bin/ssh").signal(Signal::KILL),
            "far" => {
                let verb = named("penfold ssh-end --");
                let parent = std::fs::read_to_string(format!("/proc/{}/stat", verb.pid())).unwrap();
                let parent = parent.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap();
                Process::find(parent).unwrap().signal(Signal::KILL);
            }
            "verb" => named("penfold ssh-end --").signal(Signal::KILL),
            "link" => link.cut(),
            _ => {
                let verb = named("penfold ssh-end --");
                let session =
                    ancestors(verb.pid()).into_iter().find(|one| one.command_line().starts_with("sshd: "));
                session.expect("an sshd of the session").signal(Signal::KILL);
            }
        }
        members.iter().flatten().for_each(Process::await_end);
        drop(running.finish());
        wait_until("the sandbox is gone", || env.left().is_empty());
    }
    env.assert_nothing_left();
}

/// The processes above a process.
fn ancestors(pid: i32) -> Vec<Process> {
    let parent = |pid: i32| -> Option<i32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok().filter(|pid| *pid > 1)
    };
    std::iter::successors(parent(pid), |pid| parent(*pid)).filter_map(Process::find).collect()
}

/// spec: 32.4
#[test]
fn verb_that_waits_there_ends_with_its_caller() {
    let env = TestEnv::new();
    let Some(sshd) = Sshd::start(&env) else { return };
    let sandbox = env.detach(["sleep", "1000"]);
    let waiting = Running::start(&mut command(&env, &sshd.host(), &["wait", &sandbox.id]));
    wait_until("it waits", || !env.find("penfold ssh-end -- ").is_empty());
    let verb = env.find("penfold ssh-end -- ").remove(0);
    waiting.signal(Signal::KILL);
    drop(waiting.finish());
    verb.await_end();
    assert_eq!(sandbox.status(&env).as_deref(), Some("running"));
    env.call(["rm", "-f", &sandbox.id]).with_code(0);
    env.assert_nothing_left();
}

/// spec: 32.5
#[test]
fn ps_merges_hosts_and_names_those_that_cannot_be_asked() {
    let env = TestEnv::new();
    let Some(sshd) = Sshd::start(&env) else { return };
    let sandbox = env.detach(["--name", "web", "sleep", "1000"]);
    let (one, other) = (sshd.host(), sshd.host().replace("127.0.0.1", "root@127.0.0.1"));
    let listed = call(&env, &one, &["--host", &other, "ps"]).with_code(0).out();
    let rows: Vec<&str> = listed.lines().filter(|line| line.contains(&sandbox.id)).collect();
    assert!(listed.starts_with("HOST") && rows.len() == 2, "{listed}");
    assert!(rows[0].starts_with(&one) && rows[1].starts_with(&other), "{listed}");
    let rows =
        call(&env, &one, &["--host", &other, "ps", "--json", "--filter", "name=web"]).with_code(0).json();
    assert_eq!(
        (rows[0]["host"].as_str(), rows[1]["host"].as_str()),
        (Some(one.as_str()), Some(other.as_str()))
    );
    let away = sshd::host(free_port());
    let done = call(&env, &one, &["--host", &away, "ps"]).with_code(1);
    assert!(done.out().contains(&sandbox.id), "{}", done.out());
    assert!(done.err().contains(&format!("cannot run penfold on `{away}`")), "{}", done.err());
    call(&env, &one, &["--host", &other, "stop", "web"]).refused(2, "acts on one host at a time");
    env.call(["rm", "-f", &sandbox.id]).with_code(0);
    env.assert_nothing_left();
}

/// spec: 32.1, 32.6
#[test]
fn host_that_cannot_be_reached_is_one_clear_sentence() {
    let env = TestEnv::new();
    let Some(sshd) = Sshd::start(&env) else { return };
    let away = sshd::host(free_port());
    for (words, code) in [(&["run", "true"][..], 125), (&["ps"], 1)] {
        let done = call(&env, &away, words).with_code(code);
        assert!(
            done.err().contains(&format!("cannot run penfold on `{away}`: ssh cannot connect")),
            "{}",
            done.err()
        );
    }
    let missing = format!("ssh://127.0.0.1:{}/no/such/penfold", sshd.port());
    let done = call(&env, &missing, &["run", "true"]).with_code(125);
    assert!(done.err().contains("the host has no program /no/such/penfold"), "{}", done.err());
    call(&env, "ssh://-oProxyCommand=x", &["ps"]).refused(2, "is neither a host nor a server");
    call(&env, &sshd.host(), &["serve"]).refused(2, "works on this host only");
    let mut named = command(&env, &sshd.host(), &["ps"]);
    named.env("PENFOLD_HOST", "ssh://");
    Running::start(&mut named).finish().with_code(0);
    env.assert_nothing_left();
}

/// spec: 32.7
#[test]
fn terminal_there_is_one_of_its_own() {
    let env = TestEnv::new();
    let Some(sshd) = Sshd::start(&env) else { return };
    let Some(terminal) = Terminal::open(&env) else { return };
    let bin = env.path("work/sshd/bin");
    terminal.line(&format!("export PATH={}:$PATH", bin.display()));
    terminal.line(&format!(
        "$PENFOLD --root $ROOT --host {} run -- sh -c 'tty; echo \"a b\"; exit 6'; echo code $?",
        sshd.host()
    ));
    terminal.wait_until("it has a terminal", |screen| screen.contains("/dev/pts/"));
    terminal.shows("a b");
    terminal.shows("code 6");
    terminal.line(&format!("$PENFOLD --root $ROOT --host {} run -- sleep 1000; echo code $?", sshd.host()));
    wait_until("it runs", || env.is_running("sleep 1000"));
    terminal.press("C-c");
    terminal.wait_until("it has ended", |screen| screen.contains("code 130"));
    assert!(!env.is_running("sleep 1000"));
}
