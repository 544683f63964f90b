//! The life of detached sandboxes: begun, or nothing left; ended by whatever ends them, and the reason told.

#![allow(clippy::disallowed_methods, reason = "what these tests remove is their own")]

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support_detach::{PROMPT, Small, begin, detach, forget, kill, leaf, leaves, over, status};
use crate::support_e2::{DEADLINE, Pen, Talk, eventually, pause, root};
use crate::support_f::socket::Control;
use crate::support_f::{Dice, Sandbox, until};
use rustix::process::Signal;
use serde_json::json;

#[test]
fn id_is_printed_once_the_command_runs() {
    let pen = Pen::new();
    let sandbox = detach(&pen, &["--", "sleep", "1001"]);
    assert!(pen.is_running("sleep 1001"));
    assert_eq!(status(&pen, &sandbox).as_deref(), Some("running"));
    let (_, hello) = Control::to(&sandbox.record).unwrap();
    assert_eq!(hello, json!({"hello": {"protocol": 1, "id": sandbox.id}}));
    kill(&sandbox);
    assert_eq!(over(&pen, &sandbox), ("killed".into(), "kill".into(), json!({"signal": 9})));
    forget(&sandbox);
    pen.assert_nothing_left();
}

#[test]
fn command_that_cannot_start_leaves_nothing() {
    let pen = Pen::new();
    let taken = detach(&pen, &["--name", "web", "--", "sleep", "1002"]);
    let before = leaves();
    begin(&pen, &["--scratch", "--", "no-such-program"]).refused(127, "no-such-program");
    begin(&pen, &["--scratch", "--", "/etc/passwd"]).refused(126, "/etc/passwd");
    begin(&pen, &["-w", "/no/such/directory", "--", "true"]).refused(125, "/no/such/directory");
    begin(&pen, &["--name", "web", "--", "touch", "ran"]).refused(125, "");
    for nowhere in ["/proc/penfold", "/dev/null"] {
        let words = ["--root", nowhere, "run", "-d", "--", "touch", "ran"];
        Talk::start(pen.command(crate::support_e2::penfold()).args(words)).end().refused(125, "");
    }
    assert!(!pen.path("work/ran").exists(), "a command ran that should not");
    let mine = |path: &&String| !before.contains(path);
    assert!(eventually(DEADLINE, || crate::support_f::records(&pen.path("root")) == [taken.id.clone()]));
    assert_eq!(crate::support_e2::left::entries(&pen.path("root/names")), [pen.path("root/names/web")]);
    assert!(leaf(&taken).is_some() || before.is_empty());
    assert!(eventually(DEADLINE, || pen.running("touch ran").is_empty()));
    kill(&taken);
    forget(&taken);
    assert!(leaves().iter().filter(mine).all(|path| !path.ends_with(&taken.id)));
    pen.assert_nothing_left();
}

#[test]
fn full_disk_leaves_nothing_or_a_sandbox_that_can_be_ended() {
    if !root() {
        return;
    }
    let (mut refused, mut ran) = (0, 0);
    for (files, pages) in (2..=16).map(|files| (files, 64)).chain((1..=6).map(|pages| (64, pages))) {
        let pen = Pen::new();
        let Some(small) = Small::mount(&pen, files, pages) else {
            return crate::support_e2::skip("no tmpfs can be mounted here");
        };
        let ended = begin(&pen, &["--name", "web", "--", "sleep", "1003"]);
        let what = format!("{files} files, {pages} pages: {}", ended.err());
        if ended.code() == Some(0) {
            ran += 1;
            let sandbox = Sandbox::printed(&pen.path("root"), &ended.out()).unwrap();
            assert!(pen.is_running("sleep 1003"), "{what}");
            let (control, _) = Control::to(&sandbox.record).expect("nobody listens");
            control.say("\"kill\"");
            control.rest();
            assert!(eventually(DEADLINE, || leaf(&sandbox).is_none()), "{what}");
        } else {
            refused += 1;
            ended.refused(125, "");
            assert!(
                eventually(DEADLINE, || crate::support_f::records(&pen.path("root")).is_empty()),
                "{what}"
            );
        }
        assert!(eventually(DEADLINE, || pen.running("sleep 1003").is_empty()), "{what}");
        drop(small);
        pen.assert_nothing_left();
    }
    assert!(refused > 0 && ran > 0, "{refused} refused, {ran} ran");
}

/// That its link is closed by its death looks as if it had become its program.
#[test]
fn caller_killed_while_the_command_is_looked_for_leaves_nothing() {
    let pen = Pen::new();
    // Each part is a file that is not there.
    let path = format!("PATH={}", ":".repeat(100_000));
    let mut caught = 0;
    for _ in 0..5 {
        let talk = Talk::start(&mut pen.run(["-d", "-e", &path, "--", "nosuch"]));
        let created = || {
            let records = crate::support_f::records(&pen.path("root"));
            let state = records.first().map(|id| pen.path("root/sandboxes").join(id).join("state.json"));
            state
                .and_then(|file| std::fs::read_to_string(file).ok())
                .is_some_and(|said| said.contains("created"))
        };
        eventually(PROMPT, created);
        talk.signal(Signal::KILL);
        caught += usize::from(talk.end().signal() == Some(9));
        assert!(eventually(DEADLINE, || crate::support_f::records(&pen.path("root")).is_empty()));
    }
    assert!(caught > 0, "a tenth of a second is too short on this machine");
    pen.assert_nothing_left();
}

#[test]
fn caller_killed_at_any_moment_leaves_a_listed_sandbox_or_nothing() {
    let pen = Pen::new();
    let mut dice = Dice::new();
    let seed = dice.seed();
    let first = begin(&pen, &["--rm", "--", "sleep", "1004"]).with_code(0);
    let usual = u64::try_from(first.took.as_micros()).unwrap();
    let mut told = BTreeSet::from([first.out().trim().to_owned()]);
    for _ in 0..100 {
        let talk = Talk::start(&mut pen.run(["-d", "--rm", "--", "sleep", "1004"]));
        pause(Duration::from_micros(dice.below(usual * 3 / 2)));
        talk.signal(Signal::KILL);
        let ended = talk.end();
        if ended.out().ends_with('\n') {
            told.insert(ended.out().trim().to_owned());
        }
    }
    // Whoever was not told of ends, or has come so far that it is listed.
    let mut found = (Vec::new(), 0);
    let settled = eventually(DEADLINE, || {
        let records = crate::support_f::records(&pen.path("root"));
        let state =
            |id: &String| crate::support_f::json(&pen.path("root/sandboxes").join(id).join("state.json"));
        let runs = |id: &String| state(id).is_some_and(|state| state["word"] == "running");
        // No process may be on its way to become a sandbox: each has two supervisors and the command.
        let processes = crate::support_e2::left::processes(pen.path("root").parent().unwrap()).len();
        let all_run = records.iter().all(runs) && processes == 3 * records.len();
        let (running, listed) = (pen.running("sleep 1004").len(), crate::support_detach::listed(&pen));
        found = (records, running);
        all_run && found.0.len() == running && running == listed
    });
    assert!(settled, "seed {seed}: {} records, {} processes", found.0.len(), found.1);
    let records: BTreeSet<String> = found.0.into_iter().collect();
    assert!(told.is_subset(&records), "seed {seed}: told of and not there: {:?}", told.difference(&records));
    assert!(records.len() < 101, "no caller was killed before the command ran");
    for id in records {
        let sandbox = Sandbox { record: pen.path("root/sandboxes").join(&id), id };
        kill(&sandbox);
        assert!(eventually(DEADLINE, || leaf(&sandbox).is_none()));
    }
    assert!(eventually(DEADLINE, || crate::support_f::records(&pen.path("root")).is_empty()));
    pen.assert_nothing_left();
}

/// The session of a process, its group, and the number of its terminal.
fn place(pid: i32) -> [i32; 3] {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // After the name: state, parent, group, session, terminal.
    let mut fields = stat.rsplit(") ").next().unwrap().split(' ').skip(2).map(|field| field.parse().unwrap());
    let mut next = || fields.next().unwrap();
    let (group, session, terminal) = (next(), next(), next());
    [session, group, terminal]
}

#[test]
fn sandbox_outlives_the_terminal_it_was_started_from() {
    let pen = Pen::new();
    let Some(terminal) = crate::support_e2::terminal::Terminal::open(&pen) else { return };
    // In a group of its own; all that stay in it are asked to end.
    let run = "$PF -d -- sh -c 'sleep 1006 & exec sleep 1005'";
    terminal.line(&format!(
        "bash -c \"trap : INT HUP TERM; {run}; read x; kill -INT 0; kill -HUP 0; kill -TERM 0; echo asked\""
    ));
    assert!(eventually(DEADLINE, || pen.is_running("sleep 1006") && pen.is_running("sleep 1005")));
    let [id] = crate::support_f::records(&pen.path("root")).try_into().unwrap();
    let sandbox = Sandbox { record: pen.path("root/sandboxes").join(&id), id };
    let [shell] = pen.running("bash --norc --noprofile").try_into().unwrap();
    let [session, _, its] = place(shell);
    assert_ne!(its, 0, "the shell has no terminal");
    // What is in another session has no part in the terminal: neither its hangup nor its keys nor a group in it.
    let mut ours = Vec::new();
    let all = eventually(DEADLINE, || {
        let told = sandbox.supervisors().into_iter().chain(sandbox.leader()).map(|process| process.id.pid);
        ours = told.chain(pen.running("sleep 1006")).collect();
        ours.len() == 4
    });
    assert!(all, "{ours:?}");
    for pid in ours {
        let [of, group, terminal] = place(pid);
        assert!(of != session && terminal == 0, "{pid} is in session {of}, group {group}, at {terminal}");
    }
    terminal.line("go");
    terminal.shows("asked");
    drop(terminal);
    assert!(eventually(DEADLINE, || !pen.is_running("bash --norc --noprofile")));
    // Who answers this has seen all signals that were sent to it before.
    let answered = crate::support_detach::output(&pen, &["exec", &sandbox.id, "true"]);
    assert!(answered.status.success(), "{}", crate::support_f::said(&answered));
    assert_eq!(status(&pen, &sandbox).as_deref(), Some("running"));
    kill(&sandbox);
    assert_eq!(over(&pen, &sandbox), ("killed".into(), "kill".into(), json!({"signal": 9})));
    forget(&sandbox);
    pen.assert_nothing_left();
}

/// Starts a shell that starts a sandbox and stays, and kills the shell.
fn owner_killed(pen: &Pen, options: &str) -> Sandbox {
    let command = "sh -c 'trap \"exit 9\" TERM; setsid sleep 1008 & sleep 1007 & while :; do wait; done'";
    let script = format!("$PF -d {options} -- {command}; cat");
    let mut bash = pen.command("bash");
    bash.args(["-c", &script]).stdin(std::process::Stdio::piped());
    let talk = Talk::start(&mut bash);
    talk.hear("\n", 1);
    let sandbox = Sandbox::printed(&pen.path("root"), &talk.heard()).unwrap();
    assert!(eventually(DEADLINE, || pen.is_running("sleep 1007") && pen.is_running("sleep 1008")));
    talk.signal(Signal::KILL);
    drop(talk);
    sandbox
}

#[test]
fn owner_s_death_does_what_was_asked_for() {
    for (option, code) in [("kill", json!({"signal": 9})), ("stop", json!({"code": 9}))] {
        let pen = Pen::new();
        let sandbox = owner_killed(&pen, &format!("--grace 5s --on-owner-exit {option}"));
        let gone = until(2 * PROMPT, || !pen.is_running("sleep 1007") && !pen.is_running("sleep 1008"));
        assert!(gone, "{option}");
        assert_eq!(over(&pen, &sandbox), ("killed".into(), "owner".into(), code));
        forget(&sandbox);
        pen.assert_nothing_left();
    }
    let pen = Pen::new();
    let sandbox = owner_killed(&pen, "");
    pause(Duration::from_millis(300));
    assert!(pen.is_running("sleep 1007") && pen.is_running("sleep 1008"));
    assert_eq!(status(&pen, &sandbox).as_deref(), Some("running"));
    kill(&sandbox);
    forget(&sandbox);
    pen.assert_nothing_left();
}

#[test]
fn lease_ends_the_sandbox_unless_it_is_renewed() {
    let pen = Pen::new();
    let sandbox = detach(&pen, &["--ttl", "3s", "--", "sh", "-c", "setsid sleep 1009 & exec sleep 1010"]);
    let expires = |sandbox: &Sandbox| sandbox.file("state.json").unwrap()["expires_at_ms"].as_u64().unwrap();
    let first = expires(&sandbox);
    let (control, _) = Control::to(&sandbox.record).unwrap();
    control.say("{\"extend\":60000}");
    assert_eq!(control.hear(), Some(json!("done")));
    assert!(expires(&sandbox) > first + 50_000);
    pause(Duration::from_millis(3200));
    assert_eq!(status(&pen, &sandbox).as_deref(), Some("running"));
    assert!(pen.is_running("sleep 1009"));
    control.say("{\"extend\":100}");
    assert_eq!(over(&pen, &sandbox), ("killed".into(), "ttl".into(), json!({"signal": 15})));
    forget(&sandbox);
    pen.assert_nothing_left();
}

#[test]
fn idle_sandbox_ends_and_a_busy_one_does_not() {
    let pen = Pen::new();
    let script = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done; exec sleep 1011";
    let sandbox = detach(&pen, &["--idle-timeout", "2s", "--", "sh", "-c", script]);
    let (status, cause, _) = over(&pen, &sandbox);
    assert_eq!((status.as_str(), cause.as_str()), ("killed", "idle"));
    let lasted = sandbox.file("report.json").unwrap()["duration_ms"].as_u64().unwrap();
    // The sixth line comes after a second.
    assert!(lasted >= 1000 + 2000, "ended after {lasted} ms, while there was output");
    forget(&sandbox);
    pen.assert_nothing_left();
}

#[test]
fn sandbox_to_be_forgotten_leaves_no_record() {
    let pen = Pen::new();
    for words in [["--rm", "--", "sh", "-c", "exit 3"], ["--rm", "--", "sh", "-c", "sleep 1012; :"]] {
        let sandbox = detach(&pen, &words);
        if words[4].starts_with("sleep") {
            assert!(eventually(DEADLINE, || pen.is_running("sleep 1012")));
            kill(&sandbox);
        }
        assert!(eventually(DEADLINE, || !sandbox.record.exists()), "the record of {words:?} is left");
    }
    pen.assert_nothing_left();
}

#[test]
fn name_belongs_to_one_living_sandbox() {
    let pen = Pen::new();
    let mut last = None::<Sandbox>;
    for round in 0..4 {
        let words = ["-d", "--name", "web", "--", "sleep", "1013"];
        let talks: Vec<Talk> = (0..20).map(|_| Talk::start(&mut pen.run(words))).collect();
        let (winners, losers): (Vec<_>, Vec<_>) =
            talks.into_iter().map(Talk::end).partition(|ended| ended.code() == Some(0));
        let [winner] = winners.as_slice() else { panic!("{} have the name", winners.len()) };
        let winner = Sandbox::printed(&pen.path("root"), &winner.out()).unwrap();
        for loser in losers {
            loser.refused(125, "web");
        }
        // The command of the last round may still be dying.
        assert!(eventually(DEADLINE, || pen.running("sleep 1013").len() == 1));
        // Free again, whichever way its holder went.
        if round % 2 == 0 {
            kill(&winner);
            assert!(eventually(DEADLINE, || winner.supervisors().is_empty()));
        } else {
            winner.kill_both().unwrap();
        }
        last = Some(winner);
    }
    pen.end(["true"]).with_code(0);
    let last = last.unwrap();
    assert!(eventually(DEADLINE, || last.has_ended()), "not recovered");
    std::fs::remove_dir_all(pen.path("root/sandboxes")).unwrap();
    pen.assert_nothing_left();
}

#[test]
fn exit_code_is_the_command_s_own_and_the_cause_is_told() {
    let pen = Pen::new();
    let ends = [
        ("exit 0", "exited", "exit", json!({"code": 0})),
        ("exit 143", "exited", "exit", json!({"code": 143})),
        ("exit 137", "exited", "exit", json!({"code": 137})),
        ("kill -TERM $$", "exited", "signal", json!({"signal": 15})),
        ("kill -KILL $$", "exited", "signal", json!({"signal": 9})),
        ("setsid sleep 1014 & exit 7", "exited", "exit", json!({"code": 7})),
    ];
    for (script, status, cause, exit) in ends {
        let sandbox = detach(&pen, &["--", "sh", "-c", script]);
        assert_eq!(over(&pen, &sandbox), (status.into(), cause.into(), exit), "{script}");
        forget(&sandbox);
    }
    let graceful =
        detach(&pen, &["--", "sh", "-c", "trap 'exit 143' TERM; sleep 1015 & while :; do wait; done"]);
    assert!(eventually(DEADLINE, || pen.is_running("sleep 1015")));
    let (control, _) = Control::to(&graceful.record).unwrap();
    control.say("{\"stop\":{\"signal\":15}}");
    control.rest();
    assert_eq!(over(&pen, &graceful), ("killed".into(), "stop".into(), json!({"code": 143})));
    forget(&graceful);
    pen.assert_nothing_left();
}

#[test]
fn kill_at_the_moment_of_the_exit_invents_no_code() {
    let pen = Pen::new();
    let mut dice = Dice::new();
    let seed = dice.seed();
    for round in 0..30 {
        let sandbox = detach(&pen, &["--", "sh", "-c", "setsid sleep 1016 & sleep 0.02; exit 7"]);
        pause(Duration::from_micros(dice.below(25_000)));
        if let Some((control, _)) = Control::to(&sandbox.record) {
            control.say("\"kill\"");
            control.rest();
        }
        let (_, cause, exit) = over(&pen, &sandbox);
        let fits = match cause.as_str() {
            "exit" => exit == json!({"code": 7}),
            // The leader may have been over already when the kill came.
            "kill" => exit == json!({"signal": 9}) || exit == json!({"code": 7}),
            _ => false,
        };
        assert!(fits, "seed {seed}, round {round}: {cause} with {exit}");
        let report = sandbox.file("report.json").unwrap();
        assert_eq!((&report["exit"], report["cause"].as_str()), (&exit, Some(cause.as_str())));
        forget(&sandbox);
    }
    pen.assert_nothing_left();
}

const DAEMONS: &str = "setsid sleep 1018 & (setsid sleep 1019 &); exec sleep 1017";

fn daemons_run(pen: &Pen) -> bool {
    ["1017", "1018", "1019"].iter().all(|time| pen.is_running(&format!("sleep {time}")))
}

fn no_daemon_runs(pen: &Pen) -> bool {
    ["1017", "1018", "1019"].iter().all(|time| !pen.is_running(&format!("sleep {time}")))
}

#[test]
fn death_of_either_supervisor_ends_the_sandbox() {
    let pen = Pen::new();
    for level in crate::support_e2::levels(&pen) {
        for which in [0, 1] {
            let sandbox = detach(&pen, &["--contain", level, "--", "sh", "-c", DAEMONS]);
            assert!(eventually(DEADLINE, || daemons_run(&pen)));
            sandbox.supervisors()[which].signal(Signal::KILL).unwrap();
            assert!(until(PROMPT, || no_daemon_runs(&pen)), "{level}: alive after {which} was killed");
            let killed = ("killed".into(), "supervisor".into(), json!({"signal": 9}));
            assert_eq!(over(&pen, &sandbox), killed, "{level} {which}");
            forget(&sandbox);
        }
    }
    pen.assert_nothing_left();
}

#[test]
fn kept_sandbox_goes_on_under_the_other_supervisor() {
    for level in ["cgroup", "subreaper"] {
        for which in [0, 1] {
            let pen = Pen::new();
            if !crate::support_e2::levels(&pen).contains(&level) {
                continue;
            }
            let script = "setsid sleep 1020 & until [ -e go ]; do sleep 0.05; done; exit 42";
            let words = ["--contain", level, "--on-supervisor-exit", "keep", "--", "sh", "-c", script];
            let sandbox = detach(&pen, &words);
            assert!(eventually(DEADLINE, || pen.is_running("sleep 1020")));
            let killed = sandbox.supervisors().remove(which);
            killed.signal(Signal::KILL).unwrap();
            assert!(killed.wait(Some(DEADLINE)));
            let (control, _) = Control::to(&sandbox.record).expect("nobody has taken over");
            pause(Duration::from_millis(300));
            assert!(pen.is_running("sleep 1020"), "{level}: ended with supervisor {which}");
            assert_eq!(status(&pen, &sandbox).as_deref(), Some("running"));
            std::fs::write(pen.path("work/go"), "").unwrap();
            assert!(control.rest().iter().any(|answer| answer.get("outcome").is_some()));
            let ended = ("exited".into(), "exit".into(), json!({"code": 42}));
            assert_eq!(over(&pen, &sandbox), ended, "{level} {which}");
            forget(&sandbox);
            pen.assert_nothing_left();
        }
    }
}

#[test]
fn death_of_both_supervisors_is_cleaned_up_by_the_next_command() {
    let pen = Pen::new();
    for level in crate::support_e2::levels(&pen) {
        let sandbox = detach(&pen, &["--contain", level, "--", "sh", "-c", DAEMONS]);
        assert!(eventually(DEADLINE, || daemons_run(&pen)));
        sandbox.kill_both().unwrap();
        if level != "pidns" {
            assert!(daemons_run(&pen), "{level}");
            assert_eq!(status(&pen, &sandbox).as_deref(), Some("orphaned"));
        }
        pen.end(["true"]).with_code(0);
        assert!(eventually(DEADLINE, || no_daemon_runs(&pen)), "{level}");
        assert_eq!(over(&pen, &sandbox), ("lost".into(), "lost".into(), json!(null)), "{level}");
        assert_eq!(leaf(&sandbox), None);
        // What the next command did is told as it is of any other end.
        let report = sandbox.file("report.json").unwrap();
        assert!(report["steps"].as_array().is_some_and(|steps| !steps.is_empty()), "{level}: {report}");
        forget(&sandbox);
    }
    pen.assert_nothing_left();
}

#[test]
fn kept_sandbox_without_supervisors_is_left_alone_by_the_next_command() {
    let pen = Pen::new();
    let sandbox = detach(&pen, &["--on-supervisor-exit", "keep", "--", "sh", "-c", DAEMONS]);
    assert!(eventually(DEADLINE, || daemons_run(&pen)));
    sandbox.kill_both().unwrap();
    pen.end(["true"]).with_code(0);
    pause(Duration::from_millis(300));
    assert!(daemons_run(&pen), "ended by the next command");
    assert_eq!(status(&pen, &sandbox).as_deref(), Some("orphaned"));
    let killed = crate::support_detach::output(&pen, &["kill", &sandbox.id]);
    assert!(killed.status.success(), "{}", crate::support_f::said(&killed));
    assert!(no_daemon_runs(&pen));
    assert_eq!(over(&pen, &sandbox), ("lost".into(), "lost".into(), json!(null)));
    forget(&sandbox);
    pen.assert_nothing_left();
}
