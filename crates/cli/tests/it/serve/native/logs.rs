//! Output: ranges, raw bytes, followed streams.

use std::io::Read as _;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Event, Events, Server, create, decode, delete, get, output, script, start};
use crate::support::wait_until;

fn bytes(range: &Value) -> Vec<u8> {
    let frames = range["frames"].as_array().unwrap();
    frames
        .iter()
        .flat_map(|frame| match frame["text"].as_str() {
            Some(text) => text.as_bytes().to_vec(),
            None => decode(frame["base64"].as_str().unwrap()),
        })
        .collect()
}

fn ended(server: &Server, id: &str) {
    get(server, &format!("/v1/sandboxes/{id}/wait?timeout_ms=30000")).with(200);
}

#[test]
fn ranges_join_to_the_exact_bytes() {
    let (_env, server) = start();
    let id =
        script(&server, "head -c 100000 /dev/zero | tr '\\0' 'x'; printf '\\377\\376\\0end'; echo err >&2");
    ended(&server, &id);
    let mut expected = vec![b'x'; 100_000];
    expected.extend_from_slice(b"\xff\xfe\0end");
    let mut all = Vec::new();
    let mut offset = 0;
    loop {
        let path = format!("/v1/sandboxes/{id}/logs?stream=stdout&limit=30001&offset={offset}");
        let range = get(&server, &path).with(200).json();
        let part = bytes(&range);
        assert!(part.len() <= 30001);
        all.extend(part);
        offset = range["next_offset"].as_u64().unwrap();
        if range["complete"] == true {
            break;
        }
    }
    assert!(all == expected, "{} bytes", all.len());
    let raw = get(&server, &format!("/v1/sandboxes/{id}/logs?format=raw&stream=stdout")).with(200);
    assert!(raw.body == expected);
    let err = get(&server, &format!("/v1/sandboxes/{id}/logs?stream=stderr")).json();
    assert_eq!(
        (err["frames"][0]["stream"].as_str(), err["frames"][0]["text"].as_str()),
        (Some("stderr"), Some("err\n"))
    );
    for query in ["offset=9223372036854775808", "lines=9223372036854775808"] {
        let reply = get(&server, &format!("/v1/sandboxes/{id}/logs?{query}"));
        assert_eq!(reply.with(422).problem(), "invalid_field");
    }
    let far = get(&server, &format!("/v1/sandboxes/{id}/logs?offset=99999999999")).with(200).json();
    assert_eq!((&far["frames"], &far["complete"]), (&json!([]), &json!(true)));
}

#[test]
fn a_followed_log_ends_with_the_exit() {
    let (_env, server) = start();
    let id = script(&server, "echo one; echo two >&2; sleep 0.2; echo three; exit 5");
    let mut events = Events::open(&server, &format!("/v1/sandboxes/{id}/logs"), "");
    let all = events.rest();
    let of = |name: &str| -> String {
        let wanted = all.iter().filter(|event| event.name == name);
        String::from_utf8(wanted.flat_map(output).collect()).unwrap()
    };
    assert_eq!((of("stdout").as_str(), of("stderr").as_str()), ("one\nthree\n", "two\n"));
    let end = all.last().unwrap();
    assert_eq!(
        (end.name.as_str(), &end.data["exit"], &end.data["cause"]),
        ("end", &json!({ "code": 5 }), &json!("exit"))
    );
    // Also of a sandbox that has ended, and raw.
    assert_eq!(Events::open(&server, &format!("/v1/sandboxes/{id}/logs"), "").rest(), all);
    let raw =
        get(&server, &format!("/v1/sandboxes/{id}/logs?follow=true&format=raw&stream=stdout")).with(200);
    assert_eq!(raw.body, b"one\nthree\n");
}

/// The numbers 1 to `last`, a line each.
fn numbers(last: u32) -> Vec<u8> {
    (1..=last).flat_map(|number| format!("{number}\n").into_bytes()).collect()
}

/// spec: 15.1
#[test]
fn a_stream_resumes_without_a_byte_lost_or_twice_also_after_the_server_was_killed() {
    let (env, mut server) = start();
    let id = script(
        &server,
        "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo $i; [ $((i % 500)) = 0 ] && sleep 0.1; done",
    );
    let mut all = Vec::new();
    let mut last: Option<String> = None;
    let mut resumed = 0;
    'streams: loop {
        let header = last.as_ref().map_or_else(String::new, |id| format!("last-event-id: {id}\r\n"));
        let mut events = Events::open(&server, &format!("/v1/sandboxes/{id}/logs"), &header);
        let mut taken = 0;
        while let Some(event) = events.next() {
            if event.name == "end" {
                break 'streams;
            }
            assert_eq!(event.name, "stdout", "{event:?}");
            all.extend(output(&event));
            last.clone_from(&event.id);
            taken += 1;
            if taken == 3 {
                break;
            }
        }
        resumed += 1;
        if resumed == 2 {
            server.running.signal(Signal::KILL);
            server.running.finish().with_code(137);
            server = Server::start(&env, &["--api", "native"]);
        }
    }
    assert!(all == numbers(3000), "{} bytes", all.len());
    assert!(resumed >= 2, "the server was not killed");
}

#[test]
fn a_slow_reader_is_told_what_it_missed_and_delays_nobody() {
    let (_env, server) = start();
    let body = json!({ "command": ["sh", "-c", "sleep 0.5; head -c 30000000 /dev/zero | tr '\\0' x; echo; echo done; sleep 600"],
        "log_size": 1_048_576 });
    let id = create(&server, &body)["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/sandboxes/{id}/logs?follow=true");
    let mut slow = Events::open(&server, &path, "");
    let mut quick = Events::open(&server, &path, "");
    let is_last = |event: &Event| output(event).ends_with(b"done\n");
    while !is_last(&quick.next().unwrap()) {}
    // It has read nothing, and the log has moved on.
    let mut missed = 0;
    loop {
        let event = slow.next().unwrap();
        if event.name == "lagged" {
            missed += event.data["bytes"].as_u64().unwrap();
        }
        if is_last(&event) {
            break;
        }
    }
    assert!(missed > 10_000_000, "{missed}");
    delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
    assert_eq!(slow.rest().last().unwrap().name, "end");
}

/// spec: 15.5
#[test]
fn a_drained_stream_ends_with_an_error() {
    let (env, server) = start();
    let id = script(&server, "echo up; sleep 600");
    let mut events = Events::open(&server, &format!("/v1/sandboxes/{id}/logs"), "");
    events.expect("stdout");
    let mut news = Events::open(&server, "/v1/events", "");
    let mut raw = server.connect();
    super::send(&mut *raw, "GET", &format!("/v1/sandboxes/{id}/logs?follow=true&format=raw"), "", b"");
    server.running.signal(Signal::TERM);
    for events in [&mut events, &mut news] {
        assert_eq!(events.rest().last().unwrap().data["type"], "urn:penfold:problem:draining");
    }
    let mut bytes = Vec::new();
    let _ = raw.read_to_end(&mut bytes);
    assert!(!bytes.ends_with(b"0\r\n\r\n"), "a cut stream looks complete");
    server.running.finish().with_code(0);
    let server = Server::start(&env, &["--api", "native"]);
    assert_eq!(get(&server, &format!("/v1/sandboxes/{id}")).json()["status"], "running");
}

#[test]
fn events_tell_of_every_sandbox_and_resume() {
    let (_env, server) = start();
    let mut news = Events::open(&server, "/v1/events?kind=start,exit", "");
    let id = script(&server, "exit 4");
    let begun = news.expect("start");
    assert_eq!(begun.data["id"], id);
    let exited = news.expect("exit");
    assert_eq!(exited.data["exit"], json!({ "code": 4 }));
    let header = format!("last-event-id: {}\r\n", begun.id.unwrap());
    let mut again = Events::open(&server, "/v1/events?kind=start,exit&follow=false", &header);
    assert_eq!(again.expect("exit").id, exited.id);
    again.expect("end");
    let mut none = Events::open(&server, "/v1/events?sandbox=nobody&from=start&follow=false", "");
    none.expect("end");
    wait_until("the record has its report", || {
        get(&server, &format!("/v1/sandboxes/{id}/report")).status == 200
    });
}
