//! Many followers of one log, and of the events: one thread of the server serves them.

use std::io::Write as _;
use std::path::Path;

use serde_json::json;

use super::{Event, Events, Server, ask, create, delete, get, output, post, script, start};
use crate::serve::load::Memory;
use crate::support::{TestEnv, has_program, wait_until};

/// Followers that the server had no places for, if each had a thread.
const MANY: usize = 600;

/// The names of the threads of a server.
fn threads(server: &Server) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.running.pid())).unwrap();
    // A thread may end meanwhile.
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.map(|name| name.trim_end().to_owned()).collect()
}

fn shared(server: &Server) -> usize {
    threads(server).iter().filter(|name| *name == "stream").count()
}

/// The descriptors of a server: those of sockets, and what the others are.
fn descriptors(server: &Server) -> (usize, Vec<String>) {
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.running.pid())).unwrap();
    let names = open.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
    let names = names.map(|name| name.display().to_string());
    let (sockets, others): (Vec<_>, Vec<_>) = names.partition(|name| name.starts_with("socket:"));
    (sockets.len(), others)
}

/// Asserts that these followers took a connection each, and a few descriptors and one inotify instance together.
#[track_caller]
fn assert_shared(server: &Server, before: &(usize, Vec<String>), followers: usize) {
    let (sockets, others) = descriptors(server);
    // A connection of an earlier request may be open still.
    assert!(sockets <= before.0 + followers + 1, "{sockets} sockets, {} before", before.0);
    assert!(others.len() <= before.1.len() + 8, "{others:?}");
    let inotify = |names: &[String]| names.iter().filter(|name| name.ends_with(":inotify")).count();
    assert!(inotify(&others) <= inotify(&before.1) + 1, "{others:?}");
}

/// A sandbox that writes the lines that come through a FIFO; its path of logs, and the FIFO.
fn echoing(env: &TestEnv, server: &Server) -> (String, std::fs::File) {
    let fifo = env.path("work/lines");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let text = format!("exec 3<>'{}'; echo up; while read -r line <&3; do echo $line; done", fifo.display());
    let id = script(server, &text);
    wait_until("it reads", || get(server, &format!("/v1/sandboxes/{id}/logs?format=raw")).body == b"up\n");
    let pipe = std::fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    (format!("/v1/sandboxes/{id}"), pipe)
}

/// Reads the output of a follower up to this text.
#[track_caller]
fn read_to(events: &mut Events, last: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(last) {
        text.push_str(&String::from_utf8(output(&events.expect("stdout"))).unwrap());
    }
    text
}

fn lines_reach_all(followers: usize, most: u64) {
    let (env, server) = start();
    let (sandbox, mut pipe) = echoing(&env, &server);
    let path = format!("{sandbox}/logs?follow=true");
    server.await_ready();
    let (before, memory) = (descriptors(&server), Memory::of(&server));
    let mut all: Vec<Events> = Vec::new();
    let mut written = "up\n".to_owned();
    for number in 0..followers {
        all.push(Events::open(&server, &path, ""));
        // Some come while lines come.
        if number.is_multiple_of(50) {
            let line = format!("line {number}\n");
            pipe.write_all(line.as_bytes()).unwrap();
            written.push_str(&line);
        }
    }
    pipe.write_all(b"last\n").unwrap();
    written.push_str("last\n");
    for events in &mut all {
        assert_eq!(read_to(events, "last\n"), written);
    }
    assert_eq!(shared(&server), 1, "{:?}", threads(&server));
    memory.assert_less(most);
    assert_shared(&server, &before, followers);
    // Half of them go away; the others go on, and come to the end.
    all.truncate(followers / 2);
    pipe.write_all(b"more\n").unwrap();
    for events in &mut all {
        assert_eq!(read_to(events, "more\n"), "more\n");
    }
    delete(&server, &sandbox).with(200);
    for events in &mut all {
        events.expect("end");
        assert_eq!(events.next(), None);
    }
    drop(all);
    wait_until("nothing of the followers is left", || {
        let (sockets, others) = descriptors(&server);
        shared(&server) == 0 && sockets <= before.0 && others.len() <= before.1.len()
    });
}

/// spec: 15.16
#[test]
fn six_hundred_followers_of_one_log_get_every_line_and_share_a_thread() {
    lines_reach_all(MANY, 32 << 20);
}

/// spec: 15.16
#[test]
#[ignore = "the full size, for scripts/test-full"]
fn a_thousand_followers_of_one_log_get_every_line_in_full() {
    lines_reach_all(1000, 50 << 20);
}

/// spec: 15.16
#[test]
fn a_follower_that_reads_nothing_holds_up_no_other_and_gets_everything_later() {
    let (env, server) = start();
    let go = env.path("work/go").display().to_string();
    let id =
        script(&server, &format!("until [ -e {go} ]; do sleep 0.05; done; seq -w 1 200000; exec sleep 600"));
    let path = format!("/v1/sandboxes/{id}/logs?follow=true");
    let mut slow: Vec<Events> = (0..20).map(|_| Events::open(&server, &path, "")).collect();
    let mut quick = Events::open(&server, &path, "");
    std::fs::write(&go, "").unwrap();
    let all: String = (1..=200_000).flat_map(|number| [format!("{number:06}"), "\n".to_owned()]).collect();
    assert!(read_to(&mut quick, "200000\n") == all);
    // One that comes now is not held up, either.
    assert!(read_to(&mut Events::open(&server, &path, ""), "200000\n") == all);
    assert_eq!(shared(&server), 1);
    for events in &mut slow {
        assert!(read_to(events, "200000\n") == all);
    }
    delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
}

/// spec: 15.16
#[test]
fn many_followers_that_read_nothing_hold_little_memory() {
    let (env, server) = start();
    let id = script(&server, "seq -w 1 400000; exec sleep 600");
    let path = format!("/v1/sandboxes/{id}/logs?follow=true");
    let all: String = (1..=400_000).flat_map(|number| [format!("{number:06}"), "\n".to_owned()]).collect();
    assert!(read_to(&mut Events::open(&server, &path, ""), "400000\n") == all);
    let memory = Memory::of(&server);
    let held: Vec<Events> = (0..MANY).map(|_| Events::open(&server, &path, "")).collect();
    assert!(read_to(&mut Events::open(&server, &path, ""), "400000\n") == all);
    memory.assert_less(32 << 20);
    drop(held);
    delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
    drop(env);
}

/// spec: 15.16
#[test]
fn followers_of_one_log_that_want_it_in_other_forms_each_get_theirs() {
    let (env, server) = start();
    let go = env.path("work/go").display().to_string();
    let body = json!({ "command": ["sleep", "600"] });
    let id = create(&server, &body)["id"].as_str().unwrap().to_owned();
    let text = format!("until [ -e {go} ]; do sleep 0.05; done; echo out; echo err >&2; exit 3");
    let body = json!({ "command": ["sh", "-c", text] });
    let number =
        post(&server, &format!("/v1/sandboxes/{id}/execs"), &body).with(201).json()["number"].clone();
    let path = format!("/v1/sandboxes/{id}/execs/{number}/logs?follow=true");
    let of = |query: &str| Events::open(&server, &format!("{path}{query}"), "");
    let (mut both, mut out, mut err) = (of(""), of("&stream=stdout"), of("&stream=stderr"));
    std::fs::write(&go, "").unwrap();
    let raw = ask(&server, "GET", &format!("{path}&format=raw"), "", b"").with(200).body;
    let mut lines: Vec<&str> = std::str::from_utf8(&raw).unwrap().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["err", "out"]);
    let texts = |events: Vec<Event>| {
        let end = events.last().unwrap();
        assert_eq!((end.name.as_str(), &end.data["exit"]), ("end", &json!({ "code": 3 })));
        let mut texts: Vec<_> = events.iter().map(output).filter(|text| !text.is_empty()).collect();
        texts.sort();
        texts
    };
    assert_eq!(texts(both.rest()), [b"err\n", b"out\n"]);
    assert_eq!(texts(out.rest()), [b"out\n"]);
    assert_eq!(texts(err.rest()), [b"err\n"]);
    delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
}

/// spec: 15.16
#[test]
fn followers_of_a_command_of_a_session_share_a_thread_and_each_get_its_end() {
    if !has_program(&["bash", "-c", "true"]) {
        return;
    }
    let (env, server) = start();
    let id = script(&server, "exec sleep 600");
    let sessions = format!("/v1/sandboxes/{id}/sessions");
    post(&server, &sessions, &json!({ "name": "main" })).with(201);
    let go = env.path("work/go").display().to_string();
    let command = format!("echo one; until [ -e {go} ]; do sleep 0.05; done; echo two; (exit 5)");
    let body = json!({ "command": command }).to_string();
    let begun = ask(&server, "POST", &format!("{sessions}/main/run?wait=0"), "", body.as_bytes());
    let path = format!("{sessions}/main/commands/{}/logs?follow=true", begun.with(202).json()["number"]);
    wait_until("the command has begun", || get(&server, &path.replace("?follow=true", "")).status == 200);
    let mut all: Vec<Events> = (0..20).map(|_| Events::open(&server, &path, "")).collect();
    for events in &mut all {
        assert_eq!(read_to(events, "one\n"), "one\n");
    }
    assert_eq!(shared(&server), 1, "{:?}", threads(&server));
    std::fs::write(&go, "").unwrap();
    for mut events in all {
        assert_eq!(read_to(&mut events, "two\n"), "two\n");
        assert_eq!(events.expect("end").data["code"], 5);
        assert_eq!(events.next(), None);
    }
    delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
}

/// Writes an event, as a supervisor does.
pub fn write_event(root: &Path, number: u32) {
    use penfold_state::events::{Event, EventKind, EventSubject, append_events};
    let about = EventSubject { id: "0123456789ab".to_owned(), ..EventSubject::default() };
    // Two events each have the same time.
    let event = |number: u32| Event {
        schema: 1,
        time_ns: u64::from(1000 + number / 2),
        about: about.clone(),
        what: EventKind::Exec { number, command: vec!["true".to_owned()] },
    };
    append_events(root, &[event(number)]).unwrap();
}

/// spec: 15.16
#[test]
fn each_of_a_hundred_followers_gets_each_event_once_and_in_order() {
    let (env, server) = start();
    let last = 400;
    let mut all: Vec<(u32, Events)> = Vec::new();
    for number in 0..=last {
        if number % 4 == 0 {
            // From the start, and from now on, while events come.
            let (from, first) = if number % 8 == 0 { ("start", 0) } else { ("end", number) };
            all.push((first, Events::open(&server, &format!("/v1/events?from={from}"), "")));
        }
        write_event(&env.root(), number);
    }
    let mut ids = Vec::new();
    for (first, events) in &mut all {
        let mut own = Vec::new();
        for number in *first..=last {
            let event = events.expect("exec");
            assert_eq!(event.data["number"], number);
            own.push(event.id.unwrap());
        }
        if *first == 0 {
            ids = own;
        }
    }
    assert_eq!(shared(&server), 1, "{:?}", threads(&server));
    // Each id is that of one event: a stream resumes after it.
    for at in [0, 1, 100, 399] {
        let header = format!("last-event-id: {}\r\n", ids[at]);
        let mut again = Events::open(&server, "/v1/events?follow=false", &header);
        let numbers: Vec<_> = again.rest().iter().filter_map(|event| event.data["number"].as_u64()).collect();
        let expected: Vec<u64> = (u64::try_from(at).unwrap() + 1..=u64::from(last)).collect();
        assert_eq!(numbers, expected, "after {}", ids[at]);
    }
    drop(all);
    wait_until("the thread has ended", || shared(&server) == 0);
}

/// spec: 15.16
#[test]
fn followers_of_the_events_go_on_over_a_full_file_and_take_no_descriptors() {
    let (env, server) = start();
    write_event(&env.root(), 0);
    server.await_ready();
    let before = descriptors(&server);
    let mut all: Vec<Events> = (0..50).map(|_| Events::open(&server, "/v1/events?from=start", "")).collect();
    // Each of these wants something else, and gets nothing.
    let path = |number| format!("/v1/events?from=start&sandbox=other{number}");
    let others: Vec<Events> = (0..50).map(|number| Events::open(&server, &path(number), "")).collect();
    for events in &mut all {
        assert_eq!(events.expect("exec").data["number"], 0);
    }
    // Each has opened the file, and gives its descriptor up when it has read to the end.
    wait_until("they share descriptors", || descriptors(&server).1.len() <= before.1.len() + 8);
    // The next writer renames the file.
    let path = env.root().join("events.jsonl");
    let file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.set_len(8 << 20).unwrap();
    drop(file);
    for number in 1..20 {
        write_event(&env.root(), number);
    }
    for events in &mut all {
        for number in 1..20 {
            assert_eq!(events.expect("exec").data["number"], number);
        }
    }
    assert_shared(&server, &before, all.len() + others.len());
}
