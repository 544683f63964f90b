//! Commands that are put into a running sandbox: what they get, what they answer, and that their trees end with them.

use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::Duration;

use crate::support_e2::left::Handle;
use crate::support_e2::{DEADLINE, Pen, Talk, eventually, pause, root};
use crate::support_g::wire::{Peer, description, null, request};
use crate::support_g::{Actor, Sandbox, kill, strays};
use rustix::process::Signal;

/// A tree that does what it can to outlive its top: daemons, in sessions of their own, that ignore what they can.
const TREE: &str =
    "trap '' TERM HUP INT; setsid sleep 4101 & (setsid sleep 4102 &); sleep 4103 & echo up; sleep 4104; :";
const SLEEPS: [&str; 4] = ["sleep 4101", "sleep 4102", "sleep 4103", "sleep 4104"];

/// What is not the exec's and must go on.
const OTHERS: [&str; 2] = ["sleep 4001", "sleep 4002"];

fn all_run(pen: &Pen, all: &[&str]) -> bool {
    all.iter().all(|command| pen.is_running(command))
}

fn none_runs(pen: &Pen, all: &[&str]) -> bool {
    !all.iter().any(|command| pen.is_running(command))
}

/// A sandbox with a daemon and another exec in it.
#[track_caller]
fn inhabited<'a>(actor: &'a Actor<'a>, words: &[&str]) -> Sandbox<'a> {
    let sandbox = actor.detach(&[words, &["--", "sleep", "4001"]].concat());
    sandbox.put_in(&["sleep", "4002"]);
    assert!(all_run(actor.pen, &OTHERS));
    sandbox
}

#[track_caller]
fn tree(sandbox: &Sandbox<'_>, flags: &[&str]) -> Talk {
    let talk = Talk::start(&mut sandbox.exec_command(flags, &["bash", "-c", TREE]));
    talk.hear("up", 1);
    assert!(eventually(DEADLINE, || all_run(sandbox.actor.pen, &SLEEPS)), "the tree is not there");
    talk
}

/// Each kind of user with each level that works for it.
fn everywhere(try_it: impl Fn(&Actor<'_>, &str)) {
    for who in ["own", "user", "delegated"] {
        let pen = Pen::new();
        let Some(actor) = Actor::called(&pen, who) else { continue };
        for level in actor.levels() {
            try_it(&actor, level);
            pen.assert_nothing_left();
        }
    }
}

#[test]
fn code_is_the_command_s_or_tells_why_there_is_none() {
    everywhere(|actor, level| {
        let sandbox = actor.detach(&["--contain", level, "--", "sleep", "4001"]);
        let cases: [(&[&str], &[&str], i32); 9] = [
            (&[], &["true"], 0),
            (&[], &["sh", "-c", "exit 42"], 42),
            (&[], &["no-such-program"], 127),
            (&[], &["/etc/passwd"], 126),
            (&[], &["sh", "-c", "kill -KILL $$"], 137),
            (&[], &["sh", "-c", "kill -TERM $$"], 143),
            (&["-w", "/no/such/directory"], &["true"], 125),
            (&["--timeout", "0.2"], &["sleep", "4003"], 124),
            (&["--no-such-flag"], &["true"], 125),
        ];
        for (flags, words, code) in cases {
            let ended = Talk::start(&mut sandbox.exec_command(flags, words)).end();
            let what = format!("{} {level} {flags:?} {words:?}: {}", actor.name, ended.err());
            assert_eq!(ended.code(), Some(code), "{what}");
        }
        sandbox.end();
    });
}

#[test]
fn environment_and_directory_are_the_sandbox_s() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let mut run = actor.verb(["run", "-d", "-w", "/usr", "-e", "OWN=1", "--", "sleep", "4001"]);
    let id = Talk::start(run.env("OUTER", "2")).end().with_code(0).out().trim().to_owned();
    let sandbox = Sandbox { actor: &actor, id };
    let show = ["sh", "-c", "pwd; echo $OWN-$OUTER-$CALLER-$PASSED-$PENFOLD_SANDBOX"];
    let mut command = sandbox.exec_command(&["-e", "OWN=3", "-e", "PASSED", "-w", "/tmp"], &show);
    let ended = Talk::start(command.env("CALLER", "4").env("PASSED", "5")).end().with_code(0);
    assert_eq!(ended.out(), format!("/tmp\n3-2--5-{}\n", sandbox.id));
    let ended = Talk::start(sandbox.exec_command(&[], &show).env("CALLER", "4")).end();
    assert_eq!(ended.out(), format!("/usr\n1-2---{}\n", sandbox.id));
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn directory_is_that_of_the_sandbox_s_caller_where_none_is_said() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    for level in actor.levels() {
        let sandbox = actor.detach(&["--contain", level, "--", "sh", "-c", "pwd > place; exec sleep 4001"]);
        let mut place = String::new();
        let is_told = || {
            place = std::fs::read_to_string(pen.path("work/place")).unwrap_or_default();
            place.ends_with('\n')
        };
        assert!(eventually(DEADLINE, is_told));
        assert_eq!(sandbox.exec(&["pwd"]).with_code(0).out(), place, "{level}");
        std::fs::remove_file(pen.path("work/place")).unwrap();
        sandbox.end();
    }
    pen.assert_nothing_left();
}

#[test]
fn streams_are_exact_and_apart() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let sandbox = actor.detach(&["--", "sleep", "4001"]);
    let ended = sandbox.exec(&["sh", "-c", "printf 'a\\000\\377'; printf 'b\\r\\n' >&2"]);
    assert_eq!((ended.out.as_slice(), ended.err.as_slice()), (&b"a\0\xff"[..], &b"b\r\n"[..]));
    // Its end reaches the command.
    let mut command = sandbox.exec_command(&["-i"], &["sh", "-c", "cat; echo end"]);
    let mut talk = Talk::start(command.stdin(Stdio::piped()));
    talk.say("one\n");
    talk.hear("one", 1);
    assert_eq!(talk.end().with_code(0).out(), "one\nend\n");
    // Without -i there is none, and the caller's is not touched.
    let mut command = pen.command("sh");
    let exec = format!(
        "{} --root {} exec {}",
        crate::support_e2::penfold().display(),
        pen.path("root").display(),
        sandbox.id
    );
    command.args(["-c", &format!("printf 'kept\\n' | {{ {exec} cat; cat; }}")]);
    assert_eq!(Talk::start(&mut command).end().out(), "kept\n");
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn tree_of_an_exec_ends_with_its_command_and_nothing_else_does() {
    everywhere(|actor, level| {
        let sandbox = inhabited(actor, &["--contain", level]);
        let script = "setsid sleep 4101 & (setsid sleep 4102 &); sleep 4103 & exit 3";
        let ended = sandbox.exec(&["bash", "-c", script]);
        assert_eq!(ended.code(), Some(3), "{}", ended.err());
        assert!(none_runs(actor.pen, &SLEEPS), "{} {level}: outlived the exec", actor.name);
        assert!(all_run(actor.pen, &OTHERS), "{} {level}", actor.name);
        sandbox.end();
        assert!(eventually(DEADLINE, || none_runs(actor.pen, &OTHERS)));
    });
}

#[test]
fn death_of_the_client_ends_the_tree_and_nothing_else() {
    everywhere(|actor, level| {
        let sandbox = inhabited(actor, &["--contain", level]);
        for signal in [Signal::KILL, Signal::TERM, Signal::INT] {
            let talk = tree(&sandbox, &["--grace", "0.1"]);
            talk.signal(signal);
            let gone = eventually(DEADLINE, || none_runs(actor.pen, &SLEEPS));
            assert!(gone, "{} {level} {signal:?}: outlived its client", actor.name);
            assert!(all_run(actor.pen, &OTHERS), "{} {level} {signal:?}", actor.name);
            drop(talk);
        }
        sandbox.end();
    });
}

#[test]
fn polite_signal_is_the_exec_s_or_the_sandbox_s() {
    // Not `read` of bash, which can lose an INT.
    const LISTENS: &str = "trap 'echo got INT; exit 5' INT; trap 'echo got TERM; exit 6' TERM; \
        trap 'echo got USR1; exit 7' USR1; echo up; while :; do sleep 0.05; done";
    // Longer than a shell takes to set its traps on a busy machine.
    const LIMIT: &str = "--timeout=3";
    const CASES: [(&str, &str, Option<Signal>, &str); 8] = [
        ("INT", "", Some(Signal::TERM), "INT"),
        ("USR1", "", Some(Signal::INT), "USR1"),
        ("USR1", "", None, "USR1"),
        ("USR1", "INT", Some(Signal::TERM), "INT"),
        ("USR1", "INT", None, "INT"),
        ("TERM", "USR1", Some(Signal::TERM), "USR1"),
        // Where nobody has said how to ask, it is asked as its client was.
        ("TERM", "", Some(Signal::INT), "INT"),
        ("TERM", "", None, "TERM"),
    ];
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    for level in actor.levels() {
        // All limits run at once.
        let begun = CASES.map(|(of_sandbox, of_exec, asked, hears)| {
            let what = format!("{level} {of_sandbox} {of_exec} {asked:?}");
            let sandbox = actor.detach(&["--contain", level, "--signal", of_sandbox, "--", "sleep", "4001"]);
            let mut flags = if of_exec.is_empty() { vec![] } else { vec!["--signal", of_exec] };
            flags.extend(asked.is_none().then_some(LIMIT));
            let talk = Talk::start(&mut sandbox.exec_command(&flags, &["sh", "-c", LISTENS]));
            talk.hear("up", 1);
            (what, sandbox, talk, asked, hears)
        });
        for (what, sandbox, talk, asked, hears) in begun {
            if let Some(signal) = asked {
                talk.signal(signal);
            }
            let ended = talk.end();
            assert_eq!(ended.out(), format!("up\ngot {hears}\n"), "{what}: {}", ended.err());
            sandbox.end();
        }
    }
    pen.assert_nothing_left();
}

#[test]
fn exec_that_goes_on_outlives_its_client_and_ends_with_the_sandbox() {
    everywhere(|actor, level| {
        let sandbox = inhabited(actor, &["--contain", level]);
        sandbox.put_in(&["bash", "-c", TREE]);
        assert!(eventually(DEADLINE, || all_run(actor.pen, &SLEEPS)));
        pause(Duration::from_millis(100));
        assert!(all_run(actor.pen, &SLEEPS), "{} {level}: ended with its client", actor.name);
        sandbox.ask(&["kill", "ID"]).with_code(0);
        assert!(none_runs(actor.pen, &SLEEPS) && none_runs(actor.pen, &OTHERS), "{} {level}", actor.name);
        sandbox.end();
    });
}

#[test]
fn death_of_who_looks_after_an_exec_leaves_nothing_that_outlives_the_sandbox() {
    everywhere(|actor, level| {
        let sandbox = inhabited(actor, &["--contain", level]);
        let talk = tree(&sandbox, &[]);
        kill(*sandbox.keepers().last().unwrap());
        let leaf = actor.name != "user" && level != "subreaper";
        if leaf {
            assert!(eventually(DEADLINE, || none_runs(actor.pen, &SLEEPS)), "{} {level}", actor.name);
        }
        assert!(all_run(actor.pen, &OTHERS), "{} {level}", actor.name);
        sandbox.exec(&["true"]).with_code(0);
        sandbox.ask(&["kill", "ID"]).with_code(0);
        assert!(none_runs(actor.pen, &SLEEPS), "{} {level}: outlived the sandbox", actor.name);
        // Nobody saw how it ended.
        assert_ne!(talk.end().code(), Some(0));
        sandbox.end();
    });
}

#[test]
fn every_end_of_the_sandbox_ends_its_execs_and_calls_none_a_stray() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    for level in actor.levels() {
        for end in ["kill", "stop", "ttl", "leader", "supervisor"] {
            let mut words = vec!["--contain", level, "--grace", "0.3"];
            if end == "ttl" {
                words.extend(["--ttl", "1h"]);
            }
            // It starts nothing that could become a stray.
            let script = "mkfifo g; until [ -e go ]; do read -r -t 0.05 <> g; done; exit 0";
            let sandbox = actor.detach(&[&words[..], &["--", "bash", "-c", script]].concat());
            let talk = tree(&sandbox, &[]);
            sandbox.put_in(&["sleep", "4002"]);
            match end {
                "kill" => sandbox.ask(&["kill", "ID"]).with_code(0),
                "stop" => sandbox.ask(&["stop", "ID"]).with_code(0),
                "leader" => {
                    std::fs::write(pen.path("work/go"), "").unwrap();
                    sandbox.ask(&["wait", "ID"]).with_code(0)
                }
                "supervisor" => {
                    kill(*sandbox.supervisors().last().unwrap());
                    sandbox.ask(&["wait", "ID"])
                }
                _ => {
                    sandbox.ask(&["extend", "ID", "0.1"]).with_code(0);
                    sandbox.ask(&["wait", "ID"])
                }
            };
            let report = sandbox.over();
            assert!(none_runs(&pen, &SLEEPS) && !pen.is_running("sleep 4002"), "{level} {end}");
            // In a pid namespace that was killed nobody is left to be looked at.
            assert_eq!(strays(&report), Vec::<String>::new(), "{level} {end}");
            assert_ne!(talk.end().code(), Some(0), "{level} {end}");
            for name in ["work/go", "work/g"] {
                let _ = std::fs::remove_file(pen.path(name));
            }
            sandbox.end();
            pen.assert_nothing_left();
        }
    }
}

#[test]
fn only_a_running_detached_sandbox_takes_commands() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let refused = |words: &[&str], code: i32, part: &str| {
        Talk::start(&mut actor.verb(["exec"].iter().chain(words))).end().refused(code, part);
    };
    refused(&["none", "touch", "ran"], 125, "none");
    refused(&["", "touch", "ran"], 125, "");
    let front = Talk::start(&mut pen.run(["--name", "front", "--", "sleep", "4001"]));
    assert!(eventually(DEADLINE, || pen.is_running("sleep 4001")));
    refused(&["front", "touch", "ran"], 125, "cannot be asked");
    front.signal(Signal::TERM);
    front.end();
    let script = "trap '' TERM; echo up; while :; do sleep 0.05; done";
    let ending = actor.detach(&["--grace", "1m", "--", "bash", "-c", script]);
    assert!(eventually(DEADLINE, || ending.ask(&["logs", "ID"]).out().contains("up")));
    let stop = Talk::start(&mut actor.verb(["stop", &ending.id]));
    assert!(eventually(DEADLINE, || ending.status() == "stopping"));
    refused(&[&ending.id, "touch", "ran"], 125, "cannot run");
    ending.ask(&["kill", "ID"]).with_code(0);
    stop.end();
    refused(&[&ending.id, "touch", "ran"], 125, "has ended");
    ending.end();
    assert!(!pen.path("work/ran").try_exists().unwrap());
    pen.assert_nothing_left();
}

#[test]
fn another_user_s_sandbox_takes_no_command() {
    let pen = Pen::new();
    if !root() {
        return;
    }
    let foreign = Pen::new();
    let (own, user) = (Actor::own(&pen), Actor::user(&foreign).unwrap());
    let sandbox = own.detach(&["--", "sleep", "4001"]);
    std::fs::set_permissions(pen.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = user.verb(["exec"]);
    command.arg("--root").arg(pen.path("root")).args([&sandbox.id, "touch", "/tmp/penfold-ran"]);
    let ended = Talk::start(&mut command).end();
    assert!(matches!(ended.code(), Some(3 | 7 | 125)), "{:?} {}", ended.code(), ended.err());
    assert!(!std::path::Path::new("/tmp/penfold-ran").try_exists().unwrap());
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn twenty_at_once_keep_their_streams_and_codes() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    for level in actor.levels() {
        let sandbox = actor.detach(&["--contain", level, "--", "sleep", "4001"]);
        let talks: Vec<Talk> = (0..20)
            .map(|number| {
                let script = format!("echo {number}; setsid sleep 4105 & exit {number}");
                Talk::start(&mut sandbox.exec_command(&[], &["sh", "-c", &script]))
            })
            .collect();
        for (number, talk) in talks.into_iter().enumerate() {
            let ended = talk.end().with_code(i32::try_from(number).unwrap());
            assert_eq!(ended.out(), format!("{number}\n"), "{level}");
        }
        assert!(!pen.is_running("sleep 4105"), "{level}");
        sandbox.end();
        pen.assert_nothing_left();
    }
}

#[test]
fn a_new_supervisor_knows_old_execs_and_takes_new_ones() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    for level in actor.levels().into_iter().filter(|&level| level != "pidns") {
        let sandbox = inhabited(&actor, &["--contain", level, "--on-supervisor-exit", "keep"]);
        let talk = tree(&sandbox, &[]);
        let inner = *sandbox.supervisors().last().unwrap();
        kill(inner);
        let again = || sandbox.exec(&["sh", "-c", "exit 5"]).code() == Some(5);
        assert!(eventually(DEADLINE, again), "{level}: no command is taken any more");
        assert!(all_run(&pen, &OTHERS) && all_run(&pen, &SLEEPS), "{level}");
        let seen = sandbox.ask(&["tree", "ID"]).out();
        assert!(seen.contains("exec 1 ") && seen.contains("exec 2 "), "{level}: {seen}");
        talk.signal(Signal::KILL);
        assert!(eventually(DEADLINE, || none_runs(&pen, &SLEEPS)), "{level}: outlived its client");
        sandbox.put_in(&["bash", "-c", TREE]);
        assert!(eventually(DEADLINE, || all_run(&pen, &SLEEPS)), "{level}");
        sandbox.ask(&["stop", "-t", "0.2", "ID"]).with_code(0);
        assert!(none_runs(&pen, &SLEEPS) && none_runs(&pen, &OTHERS), "{level}");
        assert_eq!(strays(&sandbox.over()), Vec::<String>::new(), "{level}");
        sandbox.end();
        pen.assert_nothing_left();
    }
}

#[test]
fn who_looks_after_an_exec_is_no_member_and_its_command_no_stray() {
    everywhere(|actor, level| {
        let sandbox = actor.detach(&["--contain", level, "--", "sleep", "4001"]);
        sandbox.put_in(&["sh", "-c", "setsid sleep 4101 & exec sleep 4002"]);
        assert!(eventually(DEADLINE, || all_run(actor.pen, &["sleep 4002", "sleep 4101"])));
        let seen = sandbox.ask(&["tree", "--full", "ID"]).with_code(0).out();
        let what = format!("{} {level}: {seen}", actor.name);
        let member = |command: &str| seen.lines().skip(1).filter(|line| line.contains(command)).last();
        for (command, stray) in [("sleep 4001", false), ("sleep 4002", false), ("sleep 4101", true)] {
            assert_eq!(member(command).map(|line| line.contains("stray")), Some(stray), "{command}: {what}");
        }
        // The sandbox, the exec, and their three members.
        assert_eq!(seen.lines().count(), 5, "{what}");
        let said = Talk::start(&mut sandbox.exec_command(&["--timeout", "0.1"], &["sleep", "4003"])).end();
        let sentence = format!("penfold: exec in {} timed out", sandbox.id);
        assert!(said.err().starts_with(&sentence), "{}", said.err());
        sandbox.end();
    });
}

#[test]
fn pid_namespace_of_the_sandbox_is_the_exec_s() {
    everywhere(|actor, level| {
        if level != "pidns" {
            return;
        }
        let sandbox = actor.detach(&["--contain", level, "--", "sleep", "4001"]);
        let seen =
            sandbox.exec(&["sh", "-c", "ps -e -o args; readlink /proc/self/ns/pid"]).with_code(0).out();
        assert!(seen.contains("sleep 4001"), "{}: {seen}", actor.name);
        let outside = std::fs::read_link("/proc/self/ns/pid").unwrap();
        assert!(!seen.contains(&*outside.to_string_lossy()), "{}: {seen}", actor.name);
        sandbox.end();
    });
}

#[test]
fn megabyte_of_arguments_and_environment_arrives() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let sandbox = actor.detach(&["--", "sleep", "4001"]);
    let word = "x".repeat(100_000);
    let mut words = vec!["sh", "-c", "echo $# ${#10} ${#BIG}", "sh"];
    words.extend([word.as_str(); 10]);
    let big = format!("BIG={word}");
    let mut command = sandbox.exec_command(&["-e", &big], &words);
    assert_eq!(Talk::start(&mut command).end().with_code(0).out(), "10 100000 100000\n");
    // What is kept of it for people is short.
    sandbox.put_in(&words);
    assert!(std::fs::metadata(sandbox.record().join("state.json")).unwrap().len() < 2048);
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn who_asked_and_left_before_it_began_is_not_served() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let sandbox = actor.detach(&["--", "sleep", "4001"]);
    let peer = Peer::greeted(&sandbox.record(), DEADLINE).unwrap();
    let [outer, inner] = sandbox.supervisors().try_into().unwrap();
    let (outer, inner) = (Handle::of(outer), Handle::of(inner));
    outer.signal(Signal::STOP);
    inner.signal(Signal::STOP);
    let file = pen.path("work/ran");
    let (description, null) = (description(&file, true), null());
    peer.say(&request(), &[description.as_fd(), null.as_fd(), null.as_fd(), null.as_fd()]);
    drop(peer);
    inner.signal(Signal::CONT);
    outer.signal(Signal::CONT);
    sandbox.exec(&["true"]).with_code(0);
    pause(Duration::from_millis(200));
    assert!(!file.try_exists().unwrap(), "nobody knows of it");
    sandbox.end();
    pen.assert_nothing_left();
}

/// Who is to copy what the command says cannot be had: it is refused in words, and the command does not run on unseen.
#[test]
fn terminal_without_a_thread_to_copy_it_is_refused() {
    let pen = Pen::new();
    let Some(actor) = Actor::user(&pen) else { return };
    let sandbox = actor.detach(&["--", "sleep", "4001"]);
    let mut limited = pen.command("prlimit");
    let words = ["--nproc=1:1", "--"].map(String::from).into_iter();
    let exec = sandbox.exec_command(&["-t"], &["sleep", "4002"]);
    let exec = std::iter::once(exec.get_program()).chain(exec.get_args());
    limited.args(words).args(exec);
    limited.uid(crate::support_g::USER).gid(crate::support_g::USER);
    let ended = Talk::start(&mut limited).end();
    assert!(ended.err().contains("Resource temporarily unavailable"), "{:?} {}", ended.code(), ended.err());
    assert_eq!(ended.code(), Some(120), "{}", ended.err());
    assert!(eventually(DEADLINE, || none_runs(&pen, &["sleep 4002"])));
    assert!(pen.is_running("sleep 4001"));
    sandbox.end();
    pen.assert_nothing_left();
}

/// What a process has locked is not shown to another group (`newgrp`): who listens could be anybody. It ends all the same.
#[test]
fn sandbox_of_another_group_is_not_talked_to_and_ends() {
    for end in ["stop", "kill"] {
        let pen = Pen::new();
        let Some(actor) = Actor::user(&pen) else { return };
        let sandbox = actor.detach(&["--", "sleep", "4001"]);
        let mut exec = sandbox.exec_command(&[], &["true"]);
        let refused = Talk::start(exec.gid(33)).end().with_code(125);
        assert!(refused.err().contains("another group"), "{}", refused.err());
        let mut verb = actor.verb([end, &sandbox.id]);
        let ended = Talk::start(verb.gid(33)).end().with_code(0);
        assert!(!pen.is_running("sleep 4001"), "{}", ended.err());
        let cause = sandbox.ask(&["inspect", "--format", "{{.Cause}}", "ID"]).with_code(0);
        assert_eq!(cause.out().trim(), end);
        sandbox.ask(&["rm", "ID"]).with_code(0);
        pen.assert_nothing_left();
    }
}
