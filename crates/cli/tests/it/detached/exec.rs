//! `penfold exec`: environment, streams, exit codes, and the end of the tree.

use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::sandboxes::{
    all_live, await_end_of, await_log, await_running, await_trees, begin, everywhere, exec, exec_command,
    exec_description, exec_request, none_lives, null, put_in, remove, strays,
};
use crate::support::{
    ControlClient, Level, Process, Running, Sandbox, TestEnv, USER, Who, is_root, wait_until,
};

/// A tree that does what it can to outlive its top: daemons, in sessions of their own, that ignore what they can.
const TREE: &str =
    "trap '' TERM HUP INT; setsid sleep 4101 & (setsid sleep 4102 &); sleep 4103 & echo up; sleep 4104; :";
const SLEEPS: [&str; 4] = ["sleep 4101", "sleep 4102", "sleep 4103", "sleep 4104"];

/// A sandbox whose command is `sleep 4001`.
#[track_caller]
fn sandbox_at(env: &TestEnv, level: Level) -> Sandbox {
    env.detach(["--contain", level.word(), "--", "sleep", "4001"])
}

/// The same with a second exec in it; gives the processes that an exec must leave alone.
#[track_caller]
fn inhabited(env: &TestEnv, flags: &[&str]) -> (Sandbox, Vec<Process>) {
    let sandbox = env.detach([flags, &["--", "sleep", "4001"]].concat());
    put_in(env, &sandbox, &["sleep", "4002"]);
    let others = await_running(env, &["sleep 4001", "sleep 4002"]);
    (sandbox, others)
}

/// Puts [`TREE`] in; gives its client and its processes.
#[track_caller]
fn tree(env: &TestEnv, sandbox: &Sandbox, flags: &[&str]) -> (Running, Vec<Process>) {
    let client = begin(env, sandbox, flags, &["bash", "-c", TREE]);
    client.hear("up", 1);
    (client, await_running(env, &SLEEPS))
}

/// spec: 13.1
#[test]
fn code_is_the_command_s_or_tells_why_there_is_none() {
    everywhere(|env, level| {
        let sandbox = sandbox_at(env, level);
        let cases: [(&[&str], &[&str], i32); 9] = [
            (&[], &["true"], 0),
            (&[], &["sh", "-c", "exit 42"], 42),
            (&[], &["no-such-program"], 127),
            (&[], &["/etc/passwd"], 126),
            (&[], &["sh", "-c", "kill -KILL $$"], 137),
            (&[], &["sh", "-c", "kill -TERM $$"], 143),
            (&["-w", "/no/such/directory"], &["true"], 125),
            (&["--timeout", "0.05"], &["sleep", "4003"], 124),
            (&["--no-such-flag"], &["true"], 125),
        ];
        // The limit of one runs while the others run.
        let clients = cases.map(|(flags, words, code)| {
            let case = format!("{:?} {level:?} {flags:?} {words:?}", env.who);
            (begin(env, &sandbox, flags, words), code, case)
        });
        for (client, code, case) in clients {
            let finished = client.finish();
            assert_eq!(finished.code(), Some(code), "{case}: {}", finished.err());
        }
        remove(env, &sandbox);
    });
}

/// spec: 13.1
#[test]
fn environment_and_directory_are_the_sandbox_s() {
    let env = TestEnv::new();
    let mut run = env.run_command(["-d", "-w", "/usr", "-e", "OWN=1", "--", "sleep", "4001"]);
    let printed = Running::start(run.env("OUTER", "2")).finish().with_code(0).out();
    let sandbox = Sandbox::printed(&env, &printed);
    let show = ["sh", "-c", "pwd; echo $OWN-$OUTER-$CALLER-$PASSED-$PENFOLD_SANDBOX"];
    let flags = ["-e", "OWN=3", "-e", "PASSED", "-w", "/tmp"];
    let mut command = exec_command(&env, &sandbox, &flags, &show);
    let shown = Running::start(command.env("CALLER", "4").env("PASSED", "5")).finish().with_code(0);
    assert_eq!(shown.out(), format!("/tmp\n3-2--5-{}\n", sandbox.id));
    let mut command = exec_command(&env, &sandbox, &[], &show);
    let shown = Running::start(command.env("CALLER", "4")).finish().with_code(0);
    assert_eq!(shown.out(), format!("/usr\n1-2---{}\n", sandbox.id));
    for (relative, place) in [(".", "/usr\n"), ("bin", "/usr/bin\n"), ("..", "/\n")] {
        let shown = sandbox.call(&env, &["exec", "-w", relative, "ID", "pwd", "-P"]).with_code(0);
        assert_eq!(shown.out(), place, "{relative}");
    }
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.1
#[test]
fn directory_is_that_of_the_sandbox_s_caller_where_none_is_said() {
    let env = TestEnv::new();
    for level in env.levels() {
        let words = ["--contain", level.word(), "--", "sh", "-c", "pwd; exec sleep 4001"];
        let sandbox = env.detach(words);
        let mut place = String::new();
        wait_until("the command prints its directory", || {
            place = sandbox.call(&env, &["logs", "ID"]).out();
            place.ends_with('\n')
        });
        assert_eq!(exec(&env, &sandbox, &["pwd"]).with_code(0).out(), place, "{level:?}");
        remove(&env, &sandbox);
    }
    env.assert_nothing_left();
}

/// spec: 13.1
#[test]
fn streams_are_exact_and_apart() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--", "sleep", "4001"]);
    let finished = exec(&env, &sandbox, &["sh", "-c", "printf 'a\\000\\377'; printf 'b\\r\\n' >&2"]);
    assert_eq!((finished.out.as_slice(), finished.err.as_slice()), (&b"a\0\xff"[..], &b"b\r\n"[..]));
    // With -i, the command reads the input of the client up to its end.
    let mut command = exec_command(&env, &sandbox, &["-i"], &["sh", "-c", "cat; echo end"]);
    let mut client = Running::start(command.stdin(Stdio::piped()));
    client.say("one\n");
    client.hear("one", 1);
    assert_eq!(client.finish().with_code(0).out(), "one\nend\n");
    // Without -i, the command has no input, and that of the client is not read.
    let script = format!("printf 'kept\\n' | {{ $PENFOLD --root $ROOT exec {} cat; cat; }}", sandbox.id);
    assert_eq!(env.script(&script).out(), "kept\n");
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.2
#[test]
fn tree_of_an_exec_ends_with_its_command_and_nothing_else_does() {
    everywhere(|env, level| {
        let (sandbox, others) = inhabited(env, &["--contain", level.word()]);
        let case = format!("{:?} {level:?}", env.who);
        let script = "setsid sleep 4101 & (setsid sleep 4102 &); sleep 4103 & read x; exit 3";
        let mut command = exec_command(env, &sandbox, &["-i"], &["bash", "-c", script]);
        let client = Running::start(command.stdin(Stdio::piped()));
        let tree = await_running(env, &SLEEPS[..3]);
        // The end of its input ends the command.
        assert_eq!(client.finish().code(), Some(3), "{case}");
        assert!(none_lives(&tree), "{case}: outlived the exec");
        assert!(all_live(&others), "{case}");
        remove(env, &sandbox);
        await_end_of(&others);
    });
}

/// spec: 13.2
#[test]
fn death_of_the_client_ends_the_tree_and_nothing_else() {
    everywhere(|env, level| {
        let (sandbox, others) = inhabited(env, &["--contain", level.word()]);
        let clients = [Signal::KILL, Signal::TERM, Signal::INT]
            .map(|signal| (signal, begin(env, &sandbox, &["--grace", "0.1"], &["bash", "-c", TREE])));
        for (_, client) in &clients {
            client.hear("up", 1);
        }
        let trees = await_trees(env, &SLEEPS, clients.len());
        for (signal, client) in &clients {
            client.signal(*signal);
        }
        await_end_of(&trees);
        for (_, client) in clients {
            client.finish();
        }
        assert!(all_live(&others), "{:?} {level:?}", env.who);
        remove(env, &sandbox);
    });
}

/// `sh`, for `read` of bash can lose an INT.
const LISTENS: &str = "trap 'echo got INT; exit 5' INT; trap 'echo got TERM; exit 6' TERM; \
    trap 'echo got USR1; exit 7' USR1; echo up; while :; do sleep 0.05; done";

/// spec: 13.2
#[test]
fn polite_signal_is_the_exec_s_or_the_sandbox_s() {
    // Longer than a shell takes to set its traps on a busy machine.
    const LIMIT: &str = "--timeout=2";
    const CASES: [(&str, &str, Option<Signal>, &str); 8] = [
        ("INT", "", Some(Signal::TERM), "INT"),
        ("USR1", "", Some(Signal::INT), "USR1"),
        ("USR1", "", None, "USR1"),
        ("USR1", "INT", Some(Signal::TERM), "INT"),
        ("USR1", "INT", None, "INT"),
        ("TERM", "USR1", Some(Signal::TERM), "USR1"),
        // Where neither has chosen a signal, the command gets that of the client.
        ("TERM", "", Some(Signal::INT), "INT"),
        ("TERM", "", None, "TERM"),
    ];
    let env = TestEnv::new();
    let (mut clients, mut sandboxes) = (Vec::new(), Vec::new());
    for level in env.levels() {
        for (of_sandbox, group) in ["INT", "USR1", "TERM"].map(|signal| (signal, CASES.iter())) {
            let words = ["--contain", level.word(), "--signal", of_sandbox, "--", "sleep", "4001"];
            let sandbox = env.detach(words);
            for (_, of_exec, sent, gets) in group.filter(|case| case.0 == of_sandbox) {
                let mut flags = if of_exec.is_empty() { vec![] } else { vec!["--signal", of_exec] };
                flags.extend(sent.is_none().then_some(LIMIT));
                let client = begin(&env, &sandbox, &flags, &["sh", "-c", LISTENS]);
                clients.push((format!("{level:?} {of_sandbox} {of_exec} {sent:?}"), client, *sent, gets));
            }
            sandboxes.push(sandbox);
        }
    }
    // All limits run at once.
    for (_, client, sent, _) in &clients {
        client.hear("up", 1);
        if let Some(signal) = sent {
            client.signal(*signal);
        }
    }
    for (case, client, _, gets) in clients {
        let finished = client.finish();
        assert_eq!(
            finished.out(),
            format!("up\ngot {gets}\n"),
            "{case}: {:?} {}",
            finished.status,
            finished.err()
        );
    }
    for sandbox in sandboxes {
        remove(&env, &sandbox);
    }
    env.assert_nothing_left();
}

/// spec: 13.2
#[test]
fn exec_that_goes_on_outlives_its_client_and_ends_with_the_sandbox() {
    everywhere(|env, level| {
        let (sandbox, others) = inhabited(env, &["--contain", level.word()]);
        put_in(env, &sandbox, &["bash", "-c", TREE]);
        let tree = await_running(env, &SLEEPS);
        // A supervisor that answers twice has looked at everything that was ready before the first answer.
        for _ in 0..2 {
            exec(env, &sandbox, &["true"]).with_code(0);
        }
        assert!(all_live(&tree), "{:?} {level:?}: ended with its client", env.who);
        sandbox.call(env, &["kill", "ID"]).with_code(0);
        assert!(none_lives(&tree) && none_lives(&others), "{:?} {level:?}", env.who);
        remove(env, &sandbox);
    });
}

/// spec: 13.3
#[test]
fn death_of_an_exec_s_supervisor_leaves_nothing_that_outlives_the_sandbox() {
    everywhere(|env, level| {
        let (sandbox, others) = inhabited(env, &["--contain", level.word()]);
        let (client, tree) = tree(env, &sandbox, &[]);
        let case = format!("{:?} {level:?}", env.who);
        sandbox.exec_supervisors().last().unwrap().signal(Signal::KILL);
        // A user without a cgroup of its own has no leaf at any level.
        let may_make_leaves =
            env.who == Who::Delegated || env.who == Who::Tester && rustix::process::geteuid().is_root();
        let has_leaf = may_make_leaves && level != Level::Subreaper;
        if has_leaf {
            await_end_of(&tree);
        }
        assert!(all_live(&others), "{case}");
        exec(env, &sandbox, &["true"]).with_code(0);
        sandbox.call(env, &["kill", "ID"]).with_code(0);
        assert!(none_lives(&tree), "{case}: outlived the sandbox");
        // Nobody has seen the command's code.
        assert_ne!(client.finish().code(), Some(0));
        remove(env, &sandbox);
    });
}

/// One way in which a sandbox ends.
fn end_by(env: &TestEnv, sandbox: &Sandbox, way: &str) {
    match way {
        "kill" | "stop" => {
            sandbox.call(env, &[way, "ID"]).with_code(0);
        }
        "leader" => {
            std::fs::write(env.path("work/go"), "").unwrap();
            sandbox.call(env, &["wait", "ID"]).with_code(0);
        }
        "supervisor" => {
            sandbox.supervisors[1].signal(Signal::KILL);
            sandbox.call(env, &["wait", "ID"]);
        }
        _ => {
            sandbox.call(env, &["extend", "ID", "0.1"]).with_code(0);
            sandbox.call(env, &["wait", "ID"]);
        }
    }
}

/// With trees, and with every way to end a sandbox at one level.
fn every_end(level: Level) {
    let env = TestEnv::new();
    if !env.levels().contains(&level) {
        return;
    }
    for way in ["kill", "stop", "ttl", "leader", "supervisor"] {
        let mut words = vec!["--contain", level.word(), "--grace", "0.1"];
        if way == "ttl" {
            words.extend(["--ttl", "1h"]);
        }
        // The leader starts nothing that could become a stray.
        let script = "mkfifo g; until [ -e go ]; do read -r -t 0.05 <> g; done; exit 0";
        let sandbox = env.detach([&words[..], &["--", "bash", "-c", script]].concat());
        let (client, mut members) = tree(&env, &sandbox, &[]);
        put_in(&env, &sandbox, &["sleep", "4002"]);
        members.extend(await_running(&env, &["sleep 4002"]));
        end_by(&env, &sandbox, way);
        let report = sandbox.await_end();
        sandbox.assert_gone(&members);
        // Of a pid namespace that was killed, no process is left to be looked at.
        assert_eq!(strays(&report), Vec::<String>::new(), "{level:?} {way}");
        assert_ne!(client.finish().code(), Some(0), "{level:?} {way}");
        for name in ["work/go", "work/g"] {
            let _ = std::fs::remove_file(env.path(name));
        }
        remove(&env, &sandbox);
        env.assert_nothing_left();
    }
}

// spec: 13.2
mod every_end_of_the_sandbox_ends_its_execs_and_calls_none_a_stray {
    use super::{Level, every_end};

    #[test]
    fn cgroup() {
        every_end(Level::Cgroup);
    }

    #[test]
    fn pidns() {
        every_end(Level::Pidns);
    }

    #[test]
    fn subreaper() {
        every_end(Level::Subreaper);
    }
}

/// spec: 13.4
#[test]
fn only_a_running_detached_sandbox_takes_commands() {
    let env = TestEnv::new();
    let refused = |words: &[&str], code: i32, part: &str| {
        env.call(["exec"].iter().chain(words)).refused(code, part);
    };
    refused(&["none", "touch", "ran"], 125, "none");
    refused(&["", "touch", "ran"], 125, "");
    let launcher = Running::start(&mut env.run_command(["--name", "launcher", "--", "sleep", "4001"]));
    await_running(&env, &["sleep 4001"]);
    refused(&["launcher", "touch", "ran"], 125, "it runs in the foreground");
    launcher.signal(Signal::TERM);
    launcher.finish();
    let script = "trap '' TERM; echo up; while :; do sleep 0.05; done";
    let sandbox = env.detach(["--grace", "1m", "--", "bash", "-c", script]);
    await_log(&env, &sandbox, "up");
    let stop = env.begin(["stop", &sandbox.id]);
    wait_until("it is stopping", || sandbox.status(&env).as_deref() == Some("stopping"));
    refused(&[&sandbox.id, "touch", "ran"], 125, "cannot run");
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    stop.finish();
    refused(&[&sandbox.id, "touch", "ran"], 125, "has ended");
    remove(&env, &sandbox);
    assert!(!env.path("work/ran").try_exists().unwrap());
    env.assert_nothing_left();
}

/// spec: 13.4
#[test]
fn another_user_s_sandbox_takes_no_command() {
    if !is_root() {
        return;
    }
    let env = TestEnv::new();
    let Some(foreign) = TestEnv::of(Who::Plain) else { return };
    let sandbox = env.detach(["--", "sleep", "4001"]);
    let ran = foreign.path("work/ran");
    let mut command = foreign.penfold(["exec", "--root"]);
    command.arg(env.root()).arg(&sandbox.id).arg("touch").arg(&ran);
    Running::start(&mut command).finish().refused(125, "belongs to user 0");
    assert!(!ran.try_exists().unwrap());
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.1
#[test]
fn twenty_at_once_keep_their_streams_and_codes() {
    let env = TestEnv::new();
    for level in env.levels() {
        let sandbox = sandbox_at(&env, level);
        let clients: Vec<Running> = (0..20)
            .map(|number| {
                let script = format!("echo {number}; setsid sleep 4105 & exit {number}");
                begin(&env, &sandbox, &[], &["sh", "-c", &script])
            })
            .collect();
        for (number, client) in clients.into_iter().enumerate() {
            let finished = client.finish().with_code(i32::try_from(number).unwrap());
            assert_eq!(finished.out(), format!("{number}\n"), "{level:?}");
        }
        assert!(!env.is_running("sleep 4105"), "{level:?}");
        remove(&env, &sandbox);
        env.assert_nothing_left();
    }
}

/// spec: 13.3
#[test]
fn a_new_supervisor_knows_old_execs_and_takes_new_ones() {
    let env = TestEnv::new();
    for level in env.levels().into_iter().filter(|&level| level != Level::Pidns) {
        let flags = ["--contain", level.word(), "--on-supervisor-exit", "keep"];
        let (sandbox, others) = inhabited(&env, &flags);
        let (client, first) = tree(&env, &sandbox, &[]);
        sandbox.supervisors[1].signal(Signal::KILL);
        let is_taken = || exec(&env, &sandbox, &["sh", "-c", "exit 5"]).code() == Some(5);
        wait_until("the new supervisor takes a command", is_taken);
        assert!(all_live(&others) && all_live(&first), "{level:?}");
        let shown = sandbox.call(&env, &["tree", "ID"]).out();
        assert!(shown.contains("exec 1 ") && shown.contains("exec 2 "), "{level:?}: {shown}");
        client.signal(Signal::KILL);
        await_end_of(&first);
        put_in(&env, &sandbox, &["bash", "-c", TREE]);
        let second = await_running(&env, &SLEEPS);
        sandbox.call(&env, &["stop", "-t", "0.2", "ID"]).with_code(0);
        assert!(none_lives(&second) && none_lives(&others), "{level:?}");
        assert_eq!(strays(&sandbox.await_end()), Vec::<String>::new(), "{level:?}");
        remove(&env, &sandbox);
        env.assert_nothing_left();
    }
}

/// spec: 13.2
#[test]
fn supervisor_of_an_exec_is_no_member_and_its_command_no_stray() {
    everywhere(|env, level| {
        let sandbox = sandbox_at(env, level);
        put_in(env, &sandbox, &["sh", "-c", "setsid sleep 4101 & exec sleep 4002"]);
        await_running(env, &["sleep 4002", "sleep 4101"]);
        let shown = sandbox.call(env, &["tree", "--full", "ID"]).with_code(0).out();
        let case = format!("{:?} {level:?}: {shown}", env.who);
        let member = |command: &str| shown.lines().skip(1).filter(|line| line.contains(command)).last();
        for (command, stray) in [("sleep 4001", false), ("sleep 4002", false), ("sleep 4101", true)] {
            assert_eq!(member(command).map(|line| line.contains("stray")), Some(stray), "{command}: {case}");
        }
        // The sandbox, the exec, and their three members.
        assert_eq!(shown.lines().count(), 5, "{case}");
        let limited = begin(env, &sandbox, &["--timeout", "0.05"], &["sleep", "4003"]).finish();
        let sentence = format!("penfold: exec in {} timed out", sandbox.id);
        assert!(limited.err().starts_with(&sentence), "{}", limited.err());
        remove(env, &sandbox);
    });
}

/// spec: 13.1
#[test]
fn pid_namespace_of_the_sandbox_is_the_exec_s() {
    everywhere(|env, level| {
        if level != Level::Pidns {
            return;
        }
        let sandbox = sandbox_at(env, level);
        let script = "ps -e -o args; readlink /proc/self/ns/pid";
        let shown = exec(env, &sandbox, &["sh", "-c", script]).with_code(0).out();
        assert!(shown.contains("sleep 4001"), "{:?}: {shown}", env.who);
        let outside = std::fs::read_link("/proc/self/ns/pid").unwrap();
        assert!(!shown.contains(&*outside.to_string_lossy()), "{:?}: {shown}", env.who);
        remove(env, &sandbox);
    });
}

/// spec: 13.1
#[test]
fn megabyte_of_arguments_and_environment_arrives() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--", "sleep", "4001"]);
    let word = "x".repeat(100_000);
    let mut words = vec!["sh", "-c", "echo $# ${#10} ${#BIG}", "sh"];
    words.extend([word.as_str(); 10]);
    let big = format!("BIG={word}");
    let finished = begin(&env, &sandbox, &["-e", &big], &words).finish().with_code(0);
    assert_eq!(finished.out(), "10 100000 100000\n");
    // The record keeps a short form for people.
    put_in(&env, &sandbox, &words);
    assert!(std::fs::metadata(sandbox.record.join("state.json")).unwrap().len() < 2048);
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.4
#[test]
fn exec_of_a_client_that_left_before_it_began_does_not_run() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--", "sleep", "4001"]);
    let [left, stayed] = ["work/left", "work/stayed"].map(|name| env.path(name));
    let clients = [&left, &stayed].map(|_| ControlClient::connect(&sandbox.record).unwrap());
    sandbox.stop_supervisors();
    for (client, file) in clients.iter().zip([&left, &stayed]) {
        let (description, null) = (exec_description(file, true), null());
        client.hand_over(&exec_request(), &[description.as_fd(), null.as_fd(), null.as_fd(), null.as_fd()]);
    }
    let [gone, _waits] = clients;
    drop(gone);
    sandbox.continue_supervisors();
    wait_until("the client that stayed is served", || stayed.try_exists().unwrap());
    wait_until("no exec is left", || {
        sandbox.file("state.json").unwrap()["execs"].as_array().is_none_or(Vec::is_empty)
    });
    assert!(!left.try_exists().unwrap(), "the client that left was served");
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// The client copies the terminal in a thread. One that cannot be made is an error, and the command does not run on.
#[test]
fn terminal_without_a_thread_to_copy_it_is_refused() {
    let Some(env) = TestEnv::of(Who::Plain) else { return };
    let sandbox = env.detach(["--", "sleep", "4001"]);
    let leader = await_running(&env, &["sleep 4001"]);
    let exec = exec_command(&env, &sandbox, &["-t"], &["sleep", "4002"]);
    let mut limited: Command = env.command("prlimit");
    limited.args(["--nproc=1:1", "--"]).arg(exec.get_program()).args(exec.get_args());
    let finished = Running::start(limited.uid(USER).gid(USER)).finish();
    let error = finished.err();
    assert!(error.contains("Resource temporarily unavailable"), "{:?} {error}", finished.code());
    assert_eq!(finished.code(), Some(120), "{error}");
    wait_until("the command is gone", || !env.is_running("sleep 4002"));
    assert!(all_live(&leader));
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// The kernel hides the lock of the supervisor from a process of another group (`newgrp`): any process could listen on the
/// socket. `stop` and `kill` end the sandbox without it.
/// spec: limits 16
#[test]
fn sandbox_of_another_group_is_not_talked_to_and_ends() {
    for verb in ["stop", "kill"] {
        let Some(env) = TestEnv::of(Who::Plain) else { return };
        let sandbox = env.detach(["--", "sleep", "4001"]);
        let members = await_running(&env, &["sleep 4001"]);
        let mut exec = exec_command(&env, &sandbox, &[], &["true"]);
        let refused = Running::start(exec.gid(33)).finish().with_code(125);
        assert!(refused.err().contains("another group"), "{}", refused.err());
        let mut command = env.penfold([verb, &sandbox.id]);
        let finished = Running::start(command.gid(33)).finish().with_code(0);
        assert!(none_lives(&members), "{}", finished.err());
        let cause = sandbox.call(&env, &["inspect", "--format", "{{.Cause}}", "ID"]).with_code(0);
        assert_eq!(cause.out().trim(), verb);
        sandbox.call(&env, &["rm", "ID"]).with_code(0);
        env.assert_nothing_left();
    }
}
