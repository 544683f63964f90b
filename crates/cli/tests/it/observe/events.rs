//! `penfold events`: what detached sandboxes have gone through, and what they go through now.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support_d::Yard;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

const DEADLINE: Duration = Duration::from_secs(20);

impl Yard {
    fn root(&self) -> PathBuf {
        self.path("root")
    }

    pub fn output(&self, words: &[&str]) -> Output {
        self.penfold(words).output().unwrap()
    }

    /// Starts a sandbox that goes on; gives the id.
    fn start(&self, words: &[&str]) -> String {
        let words = [&["run", "-d", "--timeout", "60s"], words].concat();
        let output = self.penfold(words).current_dir(self.path("")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn done(&self, words: &[&str]) {
        let output = self.output(words);
        assert!(output.status.success(), "{output:?}");
    }

    /// What is kept, as objects.
    fn events(&self, words: &[&str]) -> Vec<Value> {
        let output = self.output(&[&["events", "--no-follow", "--json"], words].concat());
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn kinds(&self, words: &[&str]) -> Vec<String> {
        self.events(words).iter().map(|event| text(event, "kind")).collect()
    }

    fn follow(&self, words: &[&str]) -> Follower {
        let mut command = self.penfold([&["events", "--json"], words].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Follower { child, lines }
    }
}

/// Ended by handle, whatever happens.
struct Follower {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Follower {
    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(event: &Value, field: &str) -> String {
    event[field].as_str().unwrap_or_default().to_owned()
}

fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + DEADLINE;
    while !holds() {
        if Instant::now() > end {
            return false;
        }
        let _ = rustix::event::poll(&mut [], Some(&Duration::from_millis(5).try_into().unwrap()));
    }
    true
}

/// Kills both supervisors of a sandbox at once, by handle.
fn lose_supervisors(yard: &Yard, id: &str) {
    let state = yard.root().join("sandboxes").join(id).join("state.json");
    let state: Value = serde_json::from_slice(&std::fs::read(state).unwrap()).unwrap();
    let supervisors = state["supervisors"].as_array().unwrap();
    let handles: Vec<_> = supervisors
        .iter()
        .map(|process| {
            let pid = Pid::from_raw(i32::try_from(process["pid"].as_i64().unwrap()).unwrap()).unwrap();
            pidfd_open(pid, PidfdFlags::empty()).unwrap()
        })
        .collect();
    assert_eq!(handles.len(), 2);
    for handle in &handles {
        pidfd_send_signal(handle, Signal::STOP).unwrap();
    }
    // The outer one last: its death continues the other.
    for handle in handles.iter().rev() {
        pidfd_send_signal(handle, Signal::KILL).unwrap();
    }
    for handle in &handles {
        let mut fds = [rustix::event::PollFd::new(handle, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut fds, Some(&DEADLINE.try_into().unwrap())), Ok(1));
    }
}

#[test]
fn a_life_is_told_from_start_to_last_step() {
    let yard = Yard::new();
    let id = yard.start(&["--name", "web", "-l", "job=17", "--", "sleep", "50"]);
    yard.done(&["exec", "web", "true"]);
    yard.done(&["stop", "web"]);
    // Whoever was told that it is over finds all of it.
    let events = yard.events(&[]);
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
    let report: Value = serde_json::from_slice(&yard.output(&["report", "--json", &id]).stdout).unwrap();
    let steps = report[0]["steps"].as_array().unwrap();
    assert_eq!(steps.len(), events.len() - 4);
    for (step, event) in steps.iter().zip(&events[4..]) {
        assert_eq!((&step["what"], &step["took_us"]), (&event["step"], &event["took_us"]));
    }
}

#[test]
fn each_thing_is_told_once_whoever_asks_again() {
    let yard = Yard::new();
    let script = "trap '' TERM; touch up; while :; do sleep 50; done";
    let id = yard.start(&["--", "sh", "-c", script]);
    assert!(eventually(|| yard.path("up").is_file()));
    let mut stop = yard.penfold(["stop", "-t", "50s", &id]).stdout(Stdio::null()).spawn().unwrap();
    assert!(eventually(|| yard.kinds(&[]).contains(&"stop".to_owned())));
    yard.done(&["kill", &id]);
    assert!(stop.wait().unwrap().success());
    let events = yard.events(&[]);
    for (kind, times) in [("start", 1), ("stop", 1), ("exit", 1), ("lost", 0)] {
        let told = events.iter().filter(|event| text(event, "kind") == kind).count();
        assert_eq!(told, times, "{kind}: {events:?}");
    }
    let causes = events.iter().map(|event| text(event, "cause")).filter(|cause| !cause.is_empty());
    assert!(causes.into_iter().all(|cause| cause == "stop"), "the first reason stands: {events:?}");
}

#[test]
fn of_a_command_that_never_ran_nothing_is_told() {
    let yard = Yard::new();
    let output = yard.output(&["run", "-d", "--", "no-such-program"]);
    assert_eq!(output.status.code(), Some(127));
    yard.start(&["--", "sleep", "50"]);
    assert_eq!(yard.kinds(&[]), ["start"]);
    yard.done(&["kill", "--all", "-f"]);
}

#[test]
fn an_exit_code_is_told_and_a_removed_record_does_not_silence_it() {
    let yard = Yard::new();
    let kept = yard.start(&["--", "sh", "-c", "exit 3"]);
    let removed = yard.start(&["--rm", "--", "sh", "-c", "exit 4"]);
    let killed = yard.start(&["--rm", "--", "sleep", "50"]);
    yard.done(&["kill", &killed]);
    for (id, word, exit) in [
        (kept, "exited", serde_json::json!({ "code": 3 })),
        (removed, "exited", serde_json::json!({ "code": 4 })),
        (killed, "killed", serde_json::json!({ "signal": 9 })),
    ] {
        let mut found = Vec::new();
        let told = eventually(|| {
            found = yard.events(&["-f", "kind=exit", "--filter", &format!("id={id}")]);
            !found.is_empty()
        });
        assert!(told && found.len() == 1, "{found:?}");
        assert_eq!((&found[0]["exit"], text(&found[0], "word")), (&exit, word.to_owned()));
    }
}

#[test]
fn filters_and_times_choose() {
    let yard = Yard::new();
    let first = yard.start(&["--name", "one", "-l", "job=1", "--", "sleep", "50"]);
    let second = yard.start(&["--name", "two", "-l", "job=2", "-l", "x=y", "--", "sleep", "50"]);
    yard.done(&["kill", "one", "two"]);
    let starts = |words: &[&str]| {
        let found = yard.events(&[&["-f", "kind=start"], words].concat());
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
    let time = text(&yard.events(&["-f", "name=two"])[0], "time");
    assert_eq!(starts(&["--since", &time]), [second.as_str()]);
    assert_eq!(yard.kinds(&["-f", "event=stop", "-f", "kind=start"]), ["start", "start", "stop", "stop"]);
    assert_eq!(yard.output(&["events", "-f", "kind=unheard-of"]).status.code(), Some(2));
    let lines =
        String::from_utf8(yard.output(&["events", "--no-follow", "-f", "kind=start"]).stdout).unwrap();
    let line = lines.lines().next().unwrap();
    assert!(line.ends_with(&format!("Z start {first} (one) sleep 50")), "{line}");
}

#[test]
fn followers_hear_of_each_event_as_it_happens() {
    let yard = Yard::new();
    // Before there is a root, let alone an event.
    let mut all = yard.follow(&["--since", "1h"]);
    let id = yard.start(&["--", "sleep", "50"]);
    assert_eq!((text(&all.next(), "kind"), &*id), ("start".to_owned(), &*id));
    let mut ends = yard.follow(&["--since", "1h", "-f", "kind=exit", "-f", "kind=start"]);
    assert_eq!(text(&ends.next(), "kind"), "start");
    let asked = Instant::now();
    yard.done(&["kill", &id]);
    assert_eq!(text(&all.next(), "kind"), "stop");
    assert_eq!(text(&ends.next(), "kind"), "exit");
    assert!(asked.elapsed() < Duration::from_secs(5));
}

#[test]
fn without_since_nothing_old_is_shown() {
    let yard = Yard::new();
    let old = yard.start(&["--", "sleep", "50"]);
    let mut follower = yard.follow(&[]);
    // It follows once it has hung up its bell: there is nothing else to see of it.
    let maps = format!("/proc/{}/fd", follower.child.id());
    let rung = |entry: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_link(entry.unwrap().path()).is_ok_and(|to| to.to_string_lossy().contains("inotify"))
    };
    assert!(eventually(|| std::fs::read_dir(&maps).unwrap().any(rung)));
    let new = yard.start(&["--", "sleep", "50"]);
    let first = follower.next();
    assert_eq!((text(&first, "kind"), text(&first, "id")), ("start".to_owned(), new.clone()));
    yard.done(&["kill", &old, &new]);
}

#[test]
fn a_follower_ends_quietly_when_nobody_reads_it() {
    let yard = Yard::new();
    let id = yard.start(&["--", "sleep", "50"]);
    let mut command = yard.penfold(["events", "--since", "1h"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.contains(" start "));
    drop(reader);
    let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
    let mut fds = [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)];
    let ended = rustix::event::poll(&mut fds, Some(&DEADLINE.try_into().unwrap())).unwrap() == 1;
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    assert!(ended && output.status.success() && output.stderr.is_empty(), "{output:?}");
    yard.done(&["kill", &id]);
}

#[test]
fn a_foreground_run_tells_nothing() {
    let yard = Yard::new();
    yard.done(&["run", "--", "true"]);
    assert_eq!(yard.output(&["events", "--no-follow"]).stdout, b"");
    assert!(!yard.root().join("events.jsonl").try_exists().unwrap());
}

#[test]
fn events_that_cannot_be_written_change_nothing_else() {
    let yard = Yard::new();
    std::fs::create_dir(yard.root()).unwrap();
    let target = yard.path("precious");
    std::fs::write(&target, "x").unwrap();
    std::os::unix::fs::symlink(&target, yard.root().join("events.jsonl")).unwrap();
    let id = yard.start(&["--", "sh", "-c", "exit 3"]);
    assert_eq!(yard.output(&["wait", &id]).stdout, b"3\n");
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "x");
    let output = yard.output(&["events", "--no-follow"]);
    assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{output:?}");
}

#[test]
fn garbage_is_noted_and_the_rest_is_shown() {
    let yard = Yard::new();
    let id = yard.start(&["--", "sleep", "50"]);
    let path = yard.root().join("events.jsonl");
    let mut kept = std::fs::read(&path).unwrap();
    kept.extend_from_slice(b"garbage\n{\"schema\":7}\n");
    std::fs::write(&path, &kept).unwrap();
    yard.done(&["kill", &id]);
    let output = yard.output(&["events", "--no-follow", "-f", "kind=start", "-f", "kind=exit"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 2);
    assert!(String::from_utf8(output.stderr).unwrap().contains("2 lines"));
    assert!(yard.output(&["-q", "events", "--no-follow"]).stderr.is_empty());
}

#[test]
fn a_sandbox_that_lost_its_supervisors_is_told_as_lost() {
    let yard = Yard::new();
    let id = yard.start(&["--on-supervisor-exit", "kill", "--", "sleep", "50"]);
    lose_supervisors(&yard, &id);
    yard.done(&["kill", &id]);
    let events = yard.events(&[]);
    let lost: Vec<&Value> = events.iter().filter(|event| event["kind"] == "lost").collect();
    assert_eq!(lost.len(), 1, "{events:?}");
    assert_eq!((&lost[0]["exit"], &lost[0]["verified"]), (&Value::Null, &true.into()));
    assert_eq!(lost[0]["survivors"], 0);
    assert!(!events.iter().any(|event| event["kind"] == "exit"));
}

#[test]
fn a_supervisor_that_was_killed_is_told_as_the_cause() {
    let yard = Yard::new();
    let id = yard.start(&["--", "sleep", "50"]);
    let state = yard.root().join("sandboxes").join(&id).join("state.json");
    let state: Value = serde_json::from_slice(&std::fs::read(state).unwrap()).unwrap();
    let pid = state["supervisors"][1]["pid"].as_i64().unwrap();
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    pidfd_send_signal(pidfd_open(pid, PidfdFlags::empty()).unwrap(), Signal::KILL).unwrap();
    assert!(eventually(|| yard.kinds(&[]).iter().any(|kind| kind == "teardown-step")));
    let events = yard.events(&["-f", "kind=stop", "-f", "kind=exit"]);
    let causes: Vec<String> = events.iter().map(|event| text(event, "cause")).collect();
    assert_eq!(causes, ["supervisor", "supervisor"], "{events:?}");
}

#[test]
fn what_gc_finds_is_told_as_a_leak() {
    let yard = Yard::new();
    let id = yard.start(&["--name", "web", "--", "sleep", "50"]);
    lose_supervisors(&yard, &id);
    // Named: this host may have leaks of others.
    yard.done(&["gc", "-f", &id]);
    let leaks = yard.events(&["-f", "kind=leak"]);
    assert!(!leaks.is_empty() && leaks.iter().all(|leak| text(leak, "id") == id), "{leaks:?}");
    assert!(leaks.iter().all(|leak| text(leak, "outcome") == "removed" && !text(leak, "what").is_empty()));
    assert_eq!(yard.kinds(&["-f", "kind=lost"]), ["lost"]);
    // What has ended and is kept was no leak.
    yard.done(&["gc", "-f", "--older-than", "0", &id]);
    assert_eq!(yard.events(&["-f", "kind=leak"]), leaks);
}
