//! `penfold events`: what detached sandboxes have gone through, and what they go through now.

use std::io::Read as _;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use super::output::has_open;
use crate::support::{Finished, Process, Running, Sandbox, TestEnv, wait_until};

/// Starts a sandbox; gives its id.
fn start(env: &TestEnv, words: &[&str]) -> String {
    env.detach(words).id
}

/// `events --no-follow` with these words.
fn kept(env: &TestEnv, words: &[&str]) -> Finished {
    env.call([&["events", "--no-follow"], words].concat())
}

/// The events that are kept, as objects.
fn events(env: &TestEnv, words: &[&str]) -> Vec<Value> {
    let lines = kept(env, &[&["--json"], words].concat()).with_code(0).out();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn kinds(env: &TestEnv, words: &[&str]) -> Vec<String> {
    events(env, words).iter().map(|event| text(event, "kind")).collect()
}

fn text(event: &Value, field: &str) -> String {
    event[field].as_str().unwrap_or_default().to_owned()
}

/// `penfold events` that goes on, read event by event.
pub struct Follower {
    command: Running,
    read: usize,
}

impl Follower {
    pub fn start(env: &TestEnv, words: &[&str]) -> Follower {
        Follower { command: env.begin([&["events", "--json"], words].concat()), read: 0 }
    }

    /// The kind and the id of the next event.
    #[track_caller]
    pub fn next(&mut self) -> (String, String) {
        self.command.hear("\n", self.read + 1);
        let lines = self.command.heard();
        let event: Value = serde_json::from_str(lines.lines().nth(self.read).unwrap()).unwrap();
        self.read += 1;
        (text(&event, "kind"), text(&event, "id"))
    }

    /// Waits until it is told of changes of the file of events.
    #[track_caller]
    pub fn await_watch(&self) {
        wait_until("it watches the file", || has_open(&self.command, "inotify"));
    }
}

/// spec: 10.1
#[test]
fn a_life_is_told_from_start_to_last_step() {
    let env = TestEnv::new();
    let id = start(&env, &["--name", "web", "-l", "job=17", "--", "sleep", "50"]);
    env.call(["exec", "web", "true"]).with_code(0);
    env.call(["stop", "web"]).with_code(0);
    // All events are written before `stop` returns.
    let events = events(&env, &["--steps"]);
    let kinds: Vec<String> = events.iter().map(|event| text(event, "kind")).collect();
    assert_eq!(kinds[..4], ["start", "exec", "stop", "exit"]);
    assert!(kinds.len() > 5 && kinds[4..].iter().all(|kind| kind == "teardown-step"), "{kinds:?}");
    for event in &events {
        assert_eq!((text(event, "id"), text(event, "name")), (id.clone(), "web".to_owned()));
        assert_eq!((&event["schema"], &event["labels"]["job"]), (&1.into(), &"17".into()));
        assert!(text(event, "time").ends_with('Z') && text(event, "time").len() == 30);
    }
    assert_eq!(events[0]["command"], serde_json::json!(["sleep", "50"]));
    assert!(events[0]["leader"].as_i64().is_some_and(|pid| pid > 1));
    assert_eq!((&events[1]["number"], &events[1]["command"][0]), (&1.into(), &"true".into()));
    assert_eq!((&events[2]["cause"], &events[2]["grace_ms"]), (&"stop".into(), &10_000.into()));
    assert_eq!(events[3]["exit"], serde_json::json!({ "signal": 15 }));
    assert_eq!((&events[3]["cause"], &events[3]["word"]), (&"stop".into(), &"killed".into()));
    // Step by step what the report has.
    let report = env.call(["report", "--json", &id]).json();
    let steps = report[0]["steps"].as_array().unwrap();
    assert_eq!(steps.len(), events.len() - 4);
    for (step, event) in steps.iter().zip(&events[4..]) {
        assert_eq!((&step["what"], &step["took_us"]), (&event["step"], &event["took_us"]));
    }
}

/// spec: 10.1
#[test]
fn each_thing_is_told_once_whoever_asks_again() {
    let env = TestEnv::new();
    let script = "trap '' TERM; echo up >> $UP; while :; do sleep 50; done";
    let id = start(&env, &["--", "sh", "-c", script]);
    env.await_up(&["up"]);
    let stop = env.begin(["stop", "-t", "50s", &id]);
    wait_until("the stop is told", || kinds(&env, &[]).contains(&"stop".to_owned()));
    env.call(["kill", &id]).with_code(0);
    stop.finish().with_code(0);
    let events = events(&env, &[]);
    for (kind, times) in [("start", 1), ("stop", 1), ("exit", 1), ("lost", 0)] {
        let told = events.iter().filter(|event| text(event, "kind") == kind).count();
        assert_eq!(told, times, "{kind}: {events:?}");
    }
    let causes = events.iter().map(|event| text(event, "cause")).filter(|cause| !cause.is_empty());
    assert!(causes.into_iter().all(|cause| cause == "stop"), "the first reason stands: {events:?}");
}

/// spec: 10.1
#[test]
fn of_a_command_that_never_ran_nothing_is_told() {
    let env = TestEnv::new();
    env.run(["-d", "--", "no-such-program"]).with_code(127);
    start(&env, &["--", "sleep", "50"]);
    assert_eq!(kinds(&env, &[]), ["start"]);
}

/// spec: 10.1
#[test]
fn an_exit_code_is_told_and_a_removed_record_does_not_silence_it() {
    let env = TestEnv::new();
    let kept = start(&env, &["--", "sh", "-c", "exit 3"]);
    let removed = start(&env, &["--rm", "--", "sh", "-c", "exit 4"]);
    let killed = start(&env, &["--rm", "--", "sleep", "50"]);
    env.call(["kill", &killed]).with_code(0);
    for (id, word, exit) in [
        (kept, "exited", serde_json::json!({ "code": 3 })),
        (removed, "exited", serde_json::json!({ "code": 4 })),
        (killed, "killed", serde_json::json!({ "signal": 9 })),
    ] {
        let mut found = Vec::new();
        wait_until("the exit is told", || {
            found = events(&env, &["-f", "kind=exit", "--filter", &format!("id={id}")]);
            !found.is_empty()
        });
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((&found[0]["exit"], text(&found[0], "word")), (&exit, word.to_owned()));
    }
}

/// spec: 10.1
#[test]
fn filters_and_times_choose() {
    let env = TestEnv::new();
    let first = start(&env, &["--name", "one", "-l", "job=1", "--", "sleep", "50"]);
    let second = start(&env, &["--name", "two", "-l", "job=2", "-l", "x=y", "--", "sleep", "50"]);
    env.call(["kill", "one", "two"]).with_code(0);
    let starts = |words: &[&str]| {
        let found = events(&env, &[&["-f", "kind=start"], words].concat());
        found.iter().map(|event| text(event, "id")).collect::<Vec<_>>()
    };
    let both = [first.clone(), second.clone()];
    assert_eq!(starts(&[]), both);
    assert_eq!(starts(&["-f", "name=one"]), [first.as_str()]);
    assert_eq!(starts(&["-f", "name=one", "-f", "name=two"]), both);
    assert_eq!(starts(&["-f", "label=job"]), both);
    assert_eq!(starts(&["-f", "label=job=2", "-f", "label=x"]), [second.as_str()]);
    assert_eq!(starts(&["-f", "label=job=1", "-f", "label=x"]), [""; 0]);
    assert_eq!(starts(&["-f", &format!("id={second}")]), [second.as_str()]);
    assert_eq!(starts(&["--since", "1h"]), both);
    assert_eq!(starts(&["--since", "2100-01-01T00:00:00Z"]), [""; 0]);
    let time = text(&events(&env, &["-f", "name=two"])[0], "time");
    assert_eq!(starts(&["--since", &time]), [second.as_str()]);
    assert_eq!(kinds(&env, &["-f", "event=stop", "-f", "kind=start"]), ["start", "start", "stop", "stop"]);
    env.call(["events", "-f", "kind=unheard-of"]).with_code(2);
    let lines = kept(&env, &["-f", "kind=start"]).out();
    let line = lines.lines().next().unwrap();
    assert!(line.ends_with(&format!("Z start {first} (one) sleep 50")), "{line}");
}

/// spec: 10.3
#[test]
fn followers_hear_of_each_event_as_it_happens() {
    let env = TestEnv::new();
    // Before there is a root, let alone an event.
    std::fs::remove_dir(env.root()).unwrap();
    let mut all = Follower::start(&env, &["--since", "1h"]);
    let id = start(&env, &["--", "sleep", "50"]);
    assert_eq!(all.next(), ("start".to_owned(), id.clone()));
    let mut ends = Follower::start(&env, &["--since", "1h", "-f", "kind=exit", "-f", "kind=start"]);
    assert_eq!(ends.next().0, "start");
    env.call(["kill", &id]).with_code(0);
    assert_eq!(all.next().0, "stop");
    assert_eq!(ends.next().0, "exit");
}

#[test]
fn without_since_nothing_old_is_shown() {
    let env = TestEnv::new();
    start(&env, &["--", "sleep", "50"]);
    let mut follower = Follower::start(&env, &[]);
    follower.await_watch();
    let new = start(&env, &["--", "sleep", "50"]);
    assert_eq!(follower.next(), ("start".to_owned(), new));
}

/// spec: 10.3
#[test]
fn a_follower_ends_quietly_when_nobody_reads_it() {
    let env = TestEnv::new();
    start(&env, &["--", "sleep", "50"]);
    let mut command = env.penfold(["events", "--since", "1h"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = child.stdout.take().unwrap();
    let follower = Running::of(child);
    let mut begin = [0; 20];
    reader.read_exact(&mut begin).unwrap();
    drop(reader);
    assert_eq!(follower.finish().with_code(0).err(), "");
}

/// spec: 10.4
#[test]
fn a_foreground_run_tells_nothing() {
    let env = TestEnv::new();
    env.run(["--", "true"]).with_code(0);
    assert_eq!(kept(&env, &[]).out(), "");
    env.run(["--", "sh", "-c", "exit 3"]).with_code(3);
    assert!(!env.root().join("events.jsonl").try_exists().unwrap());
}

/// spec: 10.4
#[test]
fn a_foreground_run_that_left_something_tells_that_once() {
    let env = TestEnv::new();
    for level in env.levels() {
        let script = "for i in 1 2 3 4 5 6; do
            setsid sleep 440$i &
            until grep -qa ^sleep /proc/$!/cmdline; do :; done
        done";
        env.run(["--contain", level.word(), "--name", "leaky", "--", "sh", "-c", script]).with_code(0);
        let told = kept(&env, &["--json", "--since", "1h"]).out();
        let told: Vec<serde_json::Value> =
            told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [.., last] = told.as_slice() else { panic!("{level:?}: nothing") };
        assert_eq!(
            (&last["kind"], &last["name"], &last["outcome"]),
            (&"leak".into(), &"leaky".into(), &"ended".into())
        );
        let what = last["what"].as_str().unwrap();
        assert!(what.contains("sleep 440") && what.ends_with(" and 2 more"), "{level:?}: {what}");
        assert_eq!(told.iter().filter(|event| event["id"] == last["id"]).count(), 1, "{told:?}");
    }
    env.assert_nothing_left();
}

/// spec: 10.4
#[test]
fn events_that_cannot_be_written_change_nothing_else() {
    let env = TestEnv::new();
    let target = env.path("precious");
    std::fs::write(&target, "x").unwrap();
    std::os::unix::fs::symlink(&target, env.root().join("events.jsonl")).unwrap();
    let id = start(&env, &["--", "sh", "-c", "exit 3"]);
    assert_eq!(env.call(["wait", &id]).out(), "3\n");
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "x");
    assert_eq!(kept(&env, &[]).with_code(1).out(), "");
}

/// spec: 10.4
#[test]
fn garbage_is_noted_and_the_rest_is_shown() {
    let env = TestEnv::new();
    let id = start(&env, &["--", "sleep", "50"]);
    let path = env.root().join("events.jsonl");
    let mut text = std::fs::read(&path).unwrap();
    text.extend_from_slice(b"garbage\n{\"schema\":7}\n");
    std::fs::write(&path, &text).unwrap();
    env.call(["kill", &id]).with_code(0);
    let shown = kept(&env, &["-f", "kind=start", "-f", "kind=exit"]);
    assert_eq!(shown.out().lines().count(), 2);
    assert!(shown.err().contains("2 events"), "{}", shown.err());
    assert_eq!(env.call(["-q", "events", "--no-follow"]).err(), "");
}

/// spec: 10.1
#[test]
fn a_sandbox_that_lost_its_supervisors_is_told_as_lost() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--on-supervisor-exit", "kill", "--", "sleep", "50"]);
    sandbox.kill_supervisors();
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    let events = events(&env, &[]);
    let lost: Vec<&Value> = events.iter().filter(|event| event["kind"] == "lost").collect();
    assert_eq!(lost.len(), 1, "{events:?}");
    assert_eq!((&lost[0]["exit"], &lost[0]["verified"]), (&Value::Null, &true.into()));
    assert_eq!(lost[0]["survivors"], 0);
    assert!(!events.iter().any(|event| event["kind"] == "exit"));
}

/// spec: 10.1
#[test]
fn steps_of_a_teardown_are_shown_on_request() {
    let env = TestEnv::new();
    env.detach(["--name", "web", "--", "true"]).await_end();
    let without = kinds(&env, &[]);
    assert!(without.iter().any(|kind| kind == "exit"), "{without:?}");
    assert!(!without.iter().any(|kind| kind == "teardown-step"), "{without:?}");
    let with = kinds(&env, &["--steps"]);
    assert!(with.iter().any(|kind| kind == "teardown-step"), "{with:?}");
    let only = kinds(&env, &["-f", "kind=teardown-step"]);
    assert_eq!(only.len(), with.len() - without.len(), "{only:?}");
}

/// spec: 10.1
#[test]
fn a_supervisor_that_was_killed_is_told_as_the_cause() {
    let env = TestEnv::new();
    let sandbox: Sandbox = env.detach(["--", "sleep", "50"]);
    let [_, inner] = &sandbox.supervisors[..] else { panic!("{sandbox:?}") };
    inner.signal(Signal::KILL);
    sandbox.supervisors.iter().for_each(Process::await_end);
    assert!(kinds(&env, &["--steps"]).contains(&"teardown-step".to_owned()));
    let events = events(&env, &["-f", "kind=stop", "-f", "kind=exit"]);
    let causes: Vec<String> = events.iter().map(|event| text(event, "cause")).collect();
    assert_eq!(causes, ["supervisor", "supervisor"], "{events:?}");
}

/// spec: 10.1
#[test]
fn what_gc_finds_is_told_as_a_leak() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--name", "web", "--", "sleep", "50"]);
    sandbox.kill_supervisors();
    let id = sandbox.id.as_str();
    // Named: this host may have leaks of others.
    env.call(["gc", "-f", id]).with_code(0);
    let leaks = events(&env, &["-f", "kind=leak"]);
    assert!(!leaks.is_empty() && leaks.iter().all(|leak| text(leak, "id") == id), "{leaks:?}");
    assert!(leaks.iter().all(|leak| text(leak, "outcome") == "removed" && !text(leak, "what").is_empty()));
    assert_eq!(kinds(&env, &["-f", "kind=lost"]), ["lost"]);
    // What has ended and is kept was no leak.
    env.call(["gc", "-f", "--older-than", "0", id]).with_code(0);
    assert_eq!(events(&env, &["-f", "kind=leak"]), leaks);
}
