//! Many clients at once: consistent answers, nothing left, and a server that stays small.
//!
//! The suite runs each load at a smaller size; `scripts/test-full` runs the tests `in_full`.

use std::io::Read as _;

use serde_json::{Value, json};

use super::Server;
use super::cloudflare::{Api, alive};
use super::native::{self, Events, output};
use crate::support::wait_until;

/// The most memory that the server has used since it was told to forget that, in bytes.
pub fn peak(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

pub fn forget_peak(pid: i32) {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
}

/// The most by which a load may make the server grow.
const GROWTH: u64 = 32 << 20;

/// The memory of a server before a load.
pub struct Memory {
    pid: i32,
    before: u64,
}

impl Memory {
    pub fn of(server: &Server) -> Memory {
        let pid = server.running.pid();
        forget_peak(pid);
        Memory { pid, before: peak(pid) }
    }

    #[track_caller]
    fn assert_flat(&self) {
        self.assert_less(GROWTH);
    }

    /// Asserts that the server grew by less than this.
    #[track_caller]
    pub fn assert_less(&self, most: u64) {
        let grown = peak(self.pid).saturating_sub(self.before);
        println!("the server grew by {} KiB", grown >> 10);
        assert!(grown < most, "{grown} bytes");
    }
}

fn sessions_keep_their_commands_apart(sessions: usize, commands: usize) {
    const CLIENTS: usize = 8;
    let api = Api::start();
    let memory = Memory::of(&api.server);
    let session = |number: usize| {
        let id = format!("s{number}");
        assert_eq!(api.out(&id, &format!("cd /proc; n={number}000; echo $n")), format!("{number}000\n"));
        for round in 1..commands {
            let told = api.run(&id, "n=$((n + 1)); pwd; echo $n >&2; (exit $((n % 1000)))").ok();
            let said = (&told["stdout"], &told["stderr"], &told["exitCode"]);
            let expected = (json!("/proc\n"), json!(format!("{}\n", number * 1000 + round)), json!(round));
            assert_eq!(said, (&expected.0, &expected.1, &expected.2), "{told}");
        }
    };
    let by_all_clients = |act: &(dyn Fn(usize) + Sync)| {
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                scope.spawn(move || (client..sessions).step_by(CLIENTS).for_each(act));
            }
        });
    };
    by_all_clients(&session);
    let listed = api.get("/api/session/list").ok();
    assert_eq!(listed["data"].as_array().unwrap().len(), sessions);
    by_all_clients(&|number| {
        api.post("/api/session/delete", &json!({ "sessionId": format!("s{number}") })).ok();
    });
    assert_eq!(api.get("/api/session/list").ok()["data"], json!([]));
    memory.assert_flat();
    wait_until("nothing is left", || api.env.left().is_empty() && api.env.processes().len() == 1);
}

/// spec: 15.9
#[test]
fn forty_sessions_keep_their_commands_apart() {
    sessions_keep_their_commands_apart(40, 10);
}

/// spec: 15.9
#[test]
#[ignore = "the full size, for scripts/test-full"]
fn two_hundred_sessions_keep_their_commands_apart_in_full() {
    sessions_keep_their_commands_apart(200, 20);
}

/// spec: 15.9
#[test]
fn each_of_fifty_followers_gets_every_byte_or_is_told_what_it_missed() {
    let (env, server) = native::start();
    let go = env.path("work/go").display().to_string();
    let text = format!("until [ -e {go} ]; do sleep 0.05; done; seq -w 1 40000");
    let id = native::script(&server, &text);
    let all: String = (1..=40000).flat_map(|number| [format!("{number:05}"), "\n".to_owned()]).collect();
    let path = format!("/v1/sandboxes/{id}/logs?follow=true");
    let memory = Memory::of(&server);
    let followers: Vec<Events> = (0..50).map(|_| Events::open(&server, &path, "")).collect();
    std::fs::write(&go, "").unwrap();
    let follow = |mut events: Events| {
        let (mut at, mut missed) = (0, 0);
        loop {
            let event = events.next().expect("a stream ends with `end`");
            match event.name.as_str() {
                "stdout" => {
                    let part = String::from_utf8(output(&event)).unwrap();
                    let rest = &all[at..];
                    let gap =
                        if missed > 0 { rest.find(&part) } else { rest.starts_with(&part).then_some(0) };
                    at += gap.expect("the next bytes") + part.len();
                    missed = 0;
                }
                "lagged" => missed = event.data["bytes"].as_u64().unwrap(),
                "end" => return assert!(at == all.len() || missed > 0, "{at} bytes"),
                other => panic!("{other}"),
            }
        }
    };
    std::thread::scope(|scope| {
        for events in followers {
            scope.spawn(|| follow(events));
        }
    });
    memory.assert_flat();
    native::delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
}

/// Four clients kill on either API while the commands end by themselves.
fn of_kills_that_race_with_exits_no_record_stays_running(kills: u32) {
    const CLIENTS: u32 = 4;
    let api = Api::with(&["--api", "native,cloudflare"]);
    api.out("s", "true");
    let id = native::script(&api.server, "exec sleep 600");
    let memory = Memory::of(&api.server);
    let race = |client: u32| {
        for round in 0..kills / CLIENTS {
            let command = format!("sleep 0.0{}", (client + round) % 6);
            if client.is_multiple_of(2) {
                let name = format!("p{client}-{round}");
                let pid = api.process("s", &name, &command);
                let told = api.delete(&format!("/api/process/{name}"));
                assert!(matches!(told.status, 200 | 404), "{:?}", told.json());
                let (status, code) = api.status(&name);
                assert!(status != "running" && code.is_some(), "{status} {code:?}");
                assert!(!alive(pid));
            } else {
                let body = json!({ "command": ["sh", "-c", command] });
                let execs = format!("/v1/sandboxes/{id}/execs");
                let made = native::post(&api.server, &execs, &body).with(201).json();
                let exec = format!("{execs}/{}", made["number"]);
                let kill = native::ask(&api.server, "POST", &format!("{exec}/kill"), "", b"").with(200);
                let result = kill.json()["result"].clone();
                assert!(result == "gone" || result == "already_gone", "{result}");
                let after = native::get(&api.server, &exec).with(200).json();
                assert_eq!(after["status"], "ended", "{after}");
                assert!(!after["exit"].is_null(), "{after}");
            }
        }
    };
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || race(client));
        }
    });
    let listed = api.get("/api/process/list").ok();
    let processes = listed["processes"].as_array().unwrap();
    // The records of the last 256 are kept, but for the one that makes room for the last.
    let kept = usize::try_from(kills / 2).unwrap();
    assert!(processes.len() == kept || kept > 256 && processes.len() >= 256, "{}", processes.len());
    assert!(processes.iter().all(|process| process["status"] != "running"), "{listed}");
    assert!(!api.env.processes().iter().any(|process| process.command_line().starts_with("sleep 0.")));
    memory.assert_flat();
}

/// spec: 15.9
#[test]
fn of_a_hundred_kills_that_race_with_exits_no_record_stays_running() {
    of_kills_that_race_with_exits_no_record_stays_running(100);
}

/// spec: 15.9
#[test]
#[ignore = "the full size, for scripts/test-full"]
fn of_a_thousand_kills_that_race_with_exits_no_record_stays_running_in_full() {
    of_kills_that_race_with_exits_no_record_stays_running(1000);
}

#[test]
fn a_follower_that_comes_late_learns_what_it_missed() {
    let api = Api::with(&["--api", "native,cloudflare", "--output-limit", "1M"]);
    api.out("s", "true");
    api.process("s", "p", "head -c 3000000 /dev/zero | tr '\\0' x");
    let last = std::iter::from_fn({
        let mut events = api.follow("p");
        move || events.next()
    })
    .last();
    assert_eq!(last.unwrap()["exitCode"], 0);
    // Whoever comes now gets the rest, and the number of bytes that are gone.
    let mut events = api.follow("p");
    let told: Vec<_> = std::iter::from_fn(move || events.next()).collect();
    let kinds: Vec<&str> = told.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        kinds.iter().position(|kind| *kind == "lagged"),
        kinds.iter().position(|kind| *kind == "stdout").map(|at| at - 1),
        "{kinds:?}"
    );
    let number = |event: &serde_json::Value| match event["type"].as_str().unwrap() {
        "stdout" => u64::try_from(event["data"].as_str().unwrap().len()).unwrap(),
        "lagged" => event["bytes"].as_u64().unwrap(),
        _ => 0,
    };
    assert!(told.iter().map(number).sum::<u64>() >= 3_000_000, "{kinds:?}");
}

/// A command of a session, and a command that is followed, write this many bytes each.
fn output_stays_out_of_the_memory_of_the_server(size: u64) {
    let api = Api::with(&["--api", "native,cloudflare", "--output-limit", "8M"]);
    api.out("s", "true");
    let memory = Memory::of(&api.server);
    let line = "123456789012345678901234567890123456789";
    let told = api.run("s", &format!("yes {line} | head -c {size}")).ok();
    let (kept, cut) = (told["stdout"].as_str().unwrap().len(), told["truncatedBytes"].as_u64().unwrap());
    assert!(kept > 1 << 20, "{kept}");
    assert_eq!(u64::try_from(kept).unwrap() + cut, size);
    memory.assert_flat();
    // The followers are slower than the command: what they miss is counted.
    let text = format!("yes {line} | head -c {size}");
    api.process("s", "p", &text);
    let mut seen = 0;
    for event in std::iter::from_fn({
        let mut events = api.follow("p");
        move || events.next()
    }) {
        seen += match event["type"].as_str().unwrap() {
            "stdout" => u64::try_from(event["data"].as_str().unwrap().len()).unwrap(),
            "lagged" => event["bytes"].as_u64().unwrap(),
            "exit" => {
                assert_eq!(event["exitCode"], 0, "{event}");
                continue;
            }
            _ => 0,
        };
    }
    // What was missed includes the heads of frames.
    assert!(seen >= size, "{seen}");
    memory.assert_flat();
    let made = native::script(&api.server, &format!("{text}; exec sleep 600"));
    let mut stream = api.server.connect();
    let path = format!("/v1/sandboxes/{made}/logs?follow=true&format=raw");
    native::send(&mut *stream, "GET", &path, "", b"");
    let mut buffer = vec![0_u8; 1 << 16];
    let mut taken = 0;
    while taken < 1_000_000 {
        taken += stream.read(&mut buffer).unwrap();
    }
    drop(stream);
    memory.assert_flat();
    let after: Value = native::delete(&api.server, &format!("/v1/sandboxes/{made}")).with(200).json();
    assert_eq!(after["result"], "gone");
}

/// spec: 15.9
#[test]
fn large_output_stays_out_of_the_memory_of_the_server() {
    output_stays_out_of_the_memory_of_the_server(100_000_000);
}

/// spec: 15.9
#[test]
#[ignore = "the full size, for scripts/test-full"]
fn a_gigabyte_of_output_stays_out_of_the_memory_of_the_server_in_full() {
    output_stays_out_of_the_memory_of_the_server(1_000_000_000);
}
