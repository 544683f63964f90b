//! Calls whose messages are protobuf or in gzip. The published client makes them in `scripts/e2b-test`.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use super::{Api, Guest, Told};

/// A field with a length.
fn long(field: u8, bytes: &[u8]) -> Vec<u8> {
    [&[field << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::best());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

fn frame(flags: u8, message: &[u8]) -> Vec<u8> {
    [&[flags][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

/// The frames of an answer.
fn frames(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut all = Vec::new();
    while let Some((&[flags, a, b, c, d], rest)) = bytes.split_first_chunk::<5>() {
        let (message, rest) = rest.split_at(usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap());
        all.push((flags, message.to_vec()));
        bytes = rest;
    }
    all
}

/// `sh -c SCRIPT` as the message of `Start`, without input.
fn start(script: &str) -> Vec<u8> {
    let config = [long(1, b"/bin/sh"), long(2, b"-c"), long(2, script.as_bytes())].concat();
    [long(1, &config), vec![32, 0]].concat()
}

fn ask(api: &Api, guest: &Guest, headers: &str, path: &str, body: &[u8]) -> Told {
    Told::read(&mut api.send("POST", path, &format!("{headers}{}", guest.headers()), body))
}

const UNARY: &str = "content-type: application/proto\r\n";
const STREAM: &str = "content-type: application/connect+proto\r\n";

/// spec: 36.6.1
#[test]
fn messages_may_be_protobuf() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let told = ask(&api, &guest, STREAM, "/process.Process/Start", &frame(0, &start("echo a; exit 3")));
    assert!(told.head.contains("content-type: application/connect+proto"), "{}", told.head);
    let said = frames(&told.body);
    let (last, messages) = said.split_last().unwrap();
    assert_eq!((last.0, serde_json::from_slice::<Value>(&last.1).unwrap()), (2, json!({})));
    // The event of its start has the pid, the last one the exit code 3 and `exited`.
    let start = &messages[0].1;
    assert_eq!([start[0], start[2], start[4]], [10, 10, 8], "{start:?}");
    assert_eq!(messages[1].1, long(1, &long(2, &long(1, b"a\n"))));
    let end = [&[8, 6, 16, 1][..], &long(3, b"exit status 3"), &long(4, b"exit status 3")].concat();
    assert_eq!(messages.last().unwrap().1, long(1, &long(3, &end)));
    // One answer, and one error, which is JSON.
    let told = ask(&api, &guest, UNARY, "/filesystem.Filesystem/Stat", &long(1, b"/tmp"));
    assert!(told.head.contains("content-type: application/proto"), "{}", told.head);
    let entry = [long(1, b"tmp"), vec![16, 2], long(3, b"/tmp")].concat();
    assert!(told.body.windows(entry.len()).any(|part| part == entry), "{:?}", told.body);
    let told = ask(&api, &guest, UNARY, "/filesystem.Filesystem/Stat", &long(1, b"/nothing"));
    assert!(told.head.contains("content-type: application/json"), "{}", told.head);
    assert_eq!((told.status, told.json()["code"].clone()), (404, json!("not_found")));
    let told = ask(&api, &guest, UNARY, "/filesystem.Filesystem/Stat", b"\x0a\x05a");
    assert_eq!((told.status, told.json()["code"].clone()), (400, json!("invalid_argument")));
}

/// spec: 36.6.1
#[test]
fn messages_may_be_in_gzip() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let path = "/filesystem.Filesystem/Stat";
    let headers =
        |encoding: &str| format!("content-type: application/json\r\ncontent-encoding: {encoding}\r\n");
    let stat = gzip(br#"{"path":"/tmp"}"#);
    let told = ask(&api, &guest, &headers("gzip"), path, &stat);
    assert_eq!((told.status, told.json()["entry"]["path"].clone()), (200, json!("/tmp")));
    let told =
        ask(&api, &guest, &format!("{UNARY}content-encoding: gzip\r\n"), path, &gzip(&long(1, b"/tmp")));
    assert_eq!(told.status, 200);
    // Nothing is nothing in any compression.
    let told = ask(&api, &guest, &headers("gzip"), "/process.Process/List", b"");
    assert_eq!((told.status, told.json()["processes"].clone()), (200, json!([])));
    for (encoding, body, code) in [
        ("br", &stat[..], "unimplemented"),
        ("gzip", &stat[..9], "invalid_argument"),
        ("gzip", b"{}", "invalid_argument"),
        // A thousand times as many bytes.
        ("gzip", &gzip(&vec![b' '; 64 << 20]), "resource_exhausted"),
    ] {
        let told = ask(&api, &guest, &headers(encoding), path, body);
        assert_eq!(told.json()["code"], code, "{encoding}");
    }
    // A stream whose messages are compressed or not.
    let named = |encoding: &str| format!("{STREAM}connect-content-encoding: {encoding}\r\n");
    let packed = frame(1, &gzip(&start("echo a")));
    for (headers, body, code) in [
        (named("gzip"), packed.clone(), None),
        (named("gzip"), frame(0, &start("echo a")), None),
        (STREAM.to_owned(), packed.clone(), Some("invalid_argument")),
        (named("zstd"), packed, Some("unimplemented")),
    ] {
        let told = ask(&api, &guest, &headers, "/process.Process/Start", &body);
        let said = frames(&told.body);
        let last: Value = serde_json::from_slice(&said.last().unwrap().1).unwrap();
        assert_eq!(last["error"]["code"].as_str(), code, "{headers}");
        assert_eq!(said.iter().any(|(_, message)| message.ends_with(b"a\n")), code.is_none());
    }
    assert_eq!(api.out(&guest, "echo usable"), "usable\n");
}
