use serde_json::{Value, json};

use super::*;

fn request(path: &str, bytes: &[u8]) -> Option<Value> {
    read(call(path).unwrap().0, bytes).map(Value::Object)
}

fn answer(path: &str, message: &Value) -> Vec<u8> {
    write(call(path).unwrap().1, message)
}

/// A field with a length.
fn long(field: u8, bytes: &[u8]) -> Vec<u8> {
    [&[field << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

#[test]
fn requests_are_read_as_json_has_them() {
    let entry = long(3, &[long(1, b"A"), long(2, b"1")].concat());
    let config = [long(1, b"sh"), long(2, b"-c"), long(2, b"true"), entry, long(4, b"/tmp")].concat();
    let size = long(1, &[8, 0xac, 2, 16, 24]);
    let start = [long(1, &config), long(2, &size), vec![32, 0]].concat();
    let expected = json!({
        "process": { "cmd": "sh", "args": ["-c", "true"], "envs": { "A": "1" }, "cwd": "/tmp" },
        "pty": { "size": { "cols": 300, "rows": 24 } },
        "stdin": false,
    });
    assert_eq!(request("/process.Process/Start", &start), Some(expected));
    let input = [long(1, &[8, 7]), long(2, &long(1, b"\0a\xff"))].concat();
    let expected = json!({ "process": { "pid": 7 }, "input": { "stdin": "AGH/" } });
    assert_eq!(request("/process.Process/SendInput", &input), Some(expected));
    assert_eq!(request("/process.Process/List", b""), Some(json!({})));
    // An entry without a value, fields that are unknown, and ones of another type.
    let odd = [long(3, &long(1, b"A")), long(9, b"x"), vec![0x4d, 1, 2, 3, 4, 0x49], vec![0; 8], vec![8, 1]];
    let expected = json!({ "process": { "envs": { "A": "" } } });
    assert_eq!(request("/process.Process/Start", &long(1, &odd.concat())), Some(expected));
}

#[test]
fn what_is_no_message_is_refused() {
    let cases: [&[u8]; 7] = [
        b"\x0a",
        b"\x0a\x02a",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        &[0xff; 11],
        b"\x0a\x01\xff",
        b"\x0b",
        b"\x09\0",
    ];
    for bytes in cases {
        assert_eq!(request("/filesystem.Filesystem/Stat", bytes), None, "{bytes:?}");
    }
}

#[test]
fn answers_are_written_as_json_has_them() {
    let event = |event: &Value| answer("/process.Process/Start", &json!({ "event": event }));
    assert_eq!(event(&json!({ "start": { "pid": 300 } })), long(1, &long(1, &[8, 0xac, 2])));
    assert_eq!(event(&json!({ "data": { "stderr": "AGH/" } })), long(1, &long(2, &long(2, b"\0a\xff"))));
    let end = json!({ "exitCode": -1, "exited": true, "status": "x", "error": null });
    assert_eq!(event(&json!({ "end": end })), long(1, &long(3, &[8, 1, 16, 1, 26, 1, b'x'])));
    assert_eq!(event(&json!({ "keepalive": {} })), long(1, &long(4, b"")));
    let file = json!({
        "name": "f", "type": "FILE_TYPE_SYMLINK", "size": "5000000000", "mode": 420,
        "modifiedTime": "1970-01-01T00:00:02.000000003Z", "metadata": { "k": "v" },
    });
    let parts = [
        long(1, b"f"),
        vec![16, 3, 32, 0x80, 0xe4, 0x97, 0xd0, 0x12, 40, 0xa4, 3],
        long(9, &[8, 2, 16, 3]),
        long(11, &[long(1, b"k"), long(2, b"v")].concat()),
    ];
    assert_eq!(answer("/filesystem.Filesystem/Stat", &json!({ "entry": file })), long(1, &parts.concat()));
    let events = json!({ "events": [{ "name": "a", "type": "EVENT_TYPE_CHMOD" }, { "name": "b" }] });
    let expected = [long(1, &[long(1, b"a"), vec![16, 5]].concat()), long(1, &long(1, b"b"))];
    assert_eq!(answer("/filesystem.Filesystem/GetWatcherEvents", &events), expected.concat());
}
