//! Who requested the end of a sandbox: `by` in the report, the words of the summary, and the event.

use std::process::Stdio;

use rustix::process::{Signal, getpid, getuid};
use serde_json::{Value, json};

use crate::end::MEMBERS_ENDED;
use crate::state::crash::can_crash;
use crate::support::{
    ControlClient, Process, Running, Sandbox, TestEnv, json as read_json, kill_at_once, wait_until,
};

fn detached(env: &TestEnv, level: &str) -> Sandbox {
    let sandbox = env.detach(["--contain", level, "--name", "web", "--", "sleep", "4441"]);
    wait_until("the command runs", || env.is_running("sleep 4441"));
    sandbox
}

/// Runs penfold to its end; returns its pid.
#[track_caller]
fn call(env: &TestEnv, words: &[&str]) -> i32 {
    let running = env.begin(words);
    let pid = running.pid();
    running.finish().with_code(0);
    pid
}

/// The events of this kind, the last first.
fn events(env: &TestEnv, kind: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(env.root().join("events.jsonl")).unwrap();
    let events = text.lines().rev().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["kind"] == kind).collect()
}

#[track_caller]
fn report(env: &TestEnv, words: &[&str]) -> Value {
    env.call(["report", "--json"].iter().chain(words)).with_code(0).json()[0].clone()
}

fn uid() -> u32 {
    getuid().as_raw()
}

/// spec: 2.6
#[test]
fn a_command_that_ends_a_detached_sandbox_is_named() {
    let env = TestEnv::new();
    for level in env.levels() {
        for (words, verb) in [(&["stop"][..], "stop"), (&["kill"], "kill"), (&["rm", "-f"], "rm")] {
            let context = format!("{level:?} {words:?}");
            let sandbox = detached(&env, level.word());
            let words = [words, &[sandbox.id.as_str()]].concat();
            let pid = call(&env, &words);
            assert!(!env.is_running("sleep 4441"), "{context}");
            let by = &events(&env, "stop")[0]["by"];
            assert_eq!(
                (&by["verb"], &by["pid"], &by["uid"]),
                (&json!(verb), &json!(pid), &json!(uid())),
                "{context}: {by}"
            );
            let command = by["command"].as_str().unwrap();
            assert!(command.contains("penfold") && command.ends_with(&words.join(" ")), "{context}: {by}");
            if verb == "rm" {
                continue;
            }
            assert_eq!(&report(&env, &["web"])["by"], by, "{context}");
            let page = env.call(["report", "web"]).with_code(0).out();
            assert!(page.contains(&format!("`penfold {verb}` (pid {pid}, user {})", uid())), "{page}");
            let shown = env.call(["events", "--no-follow", "--since", "1h"]).with_code(0).out();
            assert!(shown.contains(&format!(" by `penfold {verb}` (pid {pid}, user {})", uid())), "{shown}");
            env.call(["rm", "web"]).with_code(0);
        }
    }
    env.assert_nothing_left();
}

/// spec: 2.6
#[test]
fn of_a_client_only_the_verb_is_believed() {
    let env = TestEnv::new();
    let own = getpid().as_raw_nonzero().get();
    let lie = |verb: &str| json!({"by": {"verb": verb, "pid": 1, "uid": 4242, "command": "init", "key": "Ctrl-C", "signal": 9}});
    let long = "x".repeat(1000);
    for (said, verb) in [
        // A client of an older penfold.
        (None, "kill"),
        (Some(lie("other")), "other"),
        (Some(lie("\u{1b}[2J")), "kill"),
        (Some(lie(&long)), "kill"),
        // One of a newer penfold.
        (Some(json!({"by": {"news": 1}})), "kill"),
    ] {
        let sandbox = detached(&env, "auto");
        let client = ControlClient::connect(&sandbox.record).unwrap();
        if let Some(said) = &said {
            client.say(&said.to_string());
            assert_eq!(client.hear().unwrap(), json!("done"), "{said}");
        }
        client.say("\"kill\"");
        sandbox.await_end();
        let mut by = report(&env, &["web"])["by"].clone();
        assert!(by.as_object_mut().unwrap().remove("command").is_some(), "{by}");
        assert_eq!(by, json!({"verb": verb, "pid": own, "uid": uid()}), "{said:?}");
        env.call(["rm", "web"]).with_code(0);
    }
    env.assert_nothing_left();
}

/// spec: 2.6
#[test]
fn the_sender_of_a_signal_is_named() {
    let env = TestEnv::new();
    let own = getpid().as_raw_nonzero().get();
    for level in env.levels() {
        for (signal, to_supervisor) in [(Signal::TERM, false), (Signal::INT, false), (Signal::TERM, true)] {
            let words = ["--contain", level.word(), "--report", "r.json", "sleep", "4442"];
            let running = Running::start(&mut env.run_command(words));
            wait_until("the command runs", || env.is_running("sleep 4442"));
            if to_supervisor {
                env.find("pf-supervisor")[0].signal(signal);
            } else {
                running.signal(signal);
            }
            let done = running.finish();
            let report = read_json(&env.path("work/r.json")).unwrap();
            let by = json!({"signal": signal.as_raw(), "pid": own, "uid": uid()});
            assert_eq!((&report["cause"], &report["by"]), (&json!("stop"), &by), "{level:?} {report}");
            let name = if signal == Signal::TERM { "SIGTERM" } else { "SIGINT" };
            let words = format!(" stopped by {name} (pid {own}, user {}); ended 1 process", uid());
            assert!(done.err().contains(&words), "{level:?}: {}", done.err());
            assert!(!done.err().contains("killed"), "{}", done.err());
        }
    }
    env.assert_nothing_left();
}

/// spec: 2.6
#[test]
fn the_first_request_counts_and_a_limit_names_nobody() {
    let env = TestEnv::new();
    let own = getpid().as_raw_nonzero().get();
    // A stop that becomes a kill was requested by the first signal.
    let script = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    let words = ["--report", "r.json", "--grace", "60s", "bash", "-c", script];
    let running = Running::start(&mut env.run_command(words));
    running.hear("ready", 1);
    let sent = env.script(&format!("kill -TERM {}; echo $$", running.pid())).with_code(0).out();
    wait_until("the end has begun", || {
        let supervisors = env.find("pf-supervisor");
        running.signal(Signal::TERM);
        supervisors.is_empty()
    });
    running.finish().with_code(137);
    let report = read_json(&env.path("work/r.json")).unwrap();
    assert_eq!(report["by"]["pid"].to_string(), sent.trim(), "{report}");
    assert_ne!(report["by"]["pid"], own);

    for words in [&["sh", "-c", "exit 3"][..], &["--timeout", "200ms", "sleep", "4443"]] {
        drop(env.run([&["--report", "r.json"], words].concat()));
        let report = read_json(&env.path("work/r.json")).unwrap();
        assert!(report.get("by").is_none(), "{words:?}: {report}");
    }
    env.assert_nothing_left();
}

/// spec: 2.6
#[test]
fn a_dead_owner_is_named() {
    let env = TestEnv::new();
    for level in env.levels() {
        let _ = std::fs::remove_file(env.path("work/r.json"));
        let script = format!("$PF --contain {} --report r.json sleep 4444 & wait", level.word());
        let mut command = env.command("bash");
        let command = command.args(["-c", &script]).stdout(Stdio::null()).stderr(Stdio::null());
        let shell = Running::spawn(command);
        wait_until("the command runs", || env.is_running("sleep 4444"));
        shell.signal(Signal::KILL);
        let owner = shell.pid();
        drop(shell.finish());
        wait_until("the report is written", || {
            read_json(&env.path("work/r.json")).is_some_and(|report| report["verified"] == true)
        });
        let report = read_json(&env.path("work/r.json")).unwrap();
        let expected = (&json!("owner"), &json!({"pid": owner}));
        assert_eq!((&report["cause"], &report["by"]), expected, "{level:?}: {report}");
        assert!(!env.is_running("sleep 4444"));
    }
    env.assert_nothing_left();
}

/// spec: 2.6
#[test]
fn who_ends_an_orphan_is_named() {
    let env = TestEnv::new();
    for level in env.levels() {
        // In a pid namespace the members die with penfold's processes.
        let sandbox = detached(&env, level.word());
        sandbox.kill_supervisors();
        let pid = call(&env, &["kill", &sandbox.id]);
        let report = report(&env, &["web"]);
        assert_eq!((&report["cause"], &report["by"]["verb"]), (&json!("lost"), &json!("kill")), "{report}");
        assert_eq!((&report["by"]["pid"], &report["by"]["uid"]), (&json!(pid), &json!(uid())));
        assert!(!report["steps"].as_array().unwrap().is_empty(), "{report}");
        assert_eq!(events(&env, "lost")[0]["by"], report["by"]);
        env.call(["rm", "web"]).with_code(0);

        let mut command = env.run_command(["--contain", level.word(), "--name", "fore", "sleep", "4445"]);
        let running = Running::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
        wait_until("the command runs", || env.is_running("sleep 4445"));
        let launcher = Process::find(running.pid()).unwrap();
        kill_at_once(&[&launcher, &env.find("pf-supervisor")[0]]);
        drop(running.finish());
        let pid = call(&env, &["gc", "-f", "--older-than", "0s"]);
        let kept = env.call(["report", "--last", "--json"]).with_code(0).json()[0].clone();
        assert_eq!((&kept["name"], &kept["cause"]), (&json!("fore"), &json!("lost")), "{kept}");
        assert_eq!((&kept["by"]["verb"], &kept["by"]["pid"]), (&json!("gc"), &json!(pid)), "{kept}");
        assert!(!env.is_running("sleep 4445"));
    }
    env.assert_nothing_left();
}

/// Both supervisors stand still until the command has ended the members without them.
/// spec: 1.2.2
#[test]
fn who_ends_the_members_without_the_supervisor_is_the_cause() {
    if !can_crash() {
        return;
    }
    for (verb, cause, code) in [("stop", "stop", 143), ("kill", "kill", 137)] {
        let env = TestEnv::new();
        let sandbox = env.detach(["sleep", "1029"]);
        let leader = sandbox.leader().unwrap();
        for supervisor in &sandbox.supervisors {
            supervisor.signal(Signal::STOP);
        }
        let ending = Running::start(env.penfold([verb, &sandbox.id]).env("PENFOLD_STOP_AT", MEMBERS_ENDED));
        wait_until("the members are ended", || ending.process().state() == Some('T'));
        assert!(leader.has_ended() || leader.state() == Some('Z'));
        for supervisor in &sandbox.supervisors {
            supervisor.signal(Signal::CONT);
        }
        let exited = sandbox.await_end();
        assert_eq!((&exited["cause"], &exited["by"]["verb"]), (&cause.into(), &verb.into()), "{exited}");
        ending.signal(Signal::CONT);
        ending.finish().with_code(0);
        env.call(["wait", &sandbox.id]).with_code(code);
        sandbox.assert_gone(&[]);
    }
}
