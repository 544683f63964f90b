//! The messages of a session host, and the lines that it writes to bash: no text of a caller leaves its quotes.
#![no_main]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use penfold_session::protocol::{CommandEnd, SessionAnswer, SessionRequest, ShellCommand, ShellSnapshot};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What is read is written, and read back as the same.
fn reads_back<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Option<T> {
    let value = serde_json::from_slice::<T>(bytes).ok()?;
    let text = serde_json::to_vec(&value).expect("a message can be written");
    assert_eq!(serde_json::from_slice::<T>(&text).expect("what was written can be read"), value);
    Some(value)
}

/// Replaces each quoted word by `Q`.
fn unquoted(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        match byte {
            b'\'' => {
                assert!(rest.by_ref().any(|byte| byte == b'\''), "a quotation mark stays open");
                if out.last() != Some(&b'Q') {
                    out.push(b'Q');
                }
            }
            // Between two quoted parts of one word.
            b'\\' if rest.peek() == Some(&b'\'') => {
                rest.next();
                assert_eq!(out.last(), Some(&b'Q'));
            }
            other => out.push(other),
        }
    }
    out
}

fuzz_target!(|data: &[u8]| {
    reads_back::<SessionRequest>(data);
    reads_back::<SessionAnswer>(data);
    reads_back::<CommandEnd>(data);
    reads_back::<ShellSnapshot>(data);
    if let Some(run) = reads_back::<ShellCommand>(data)
        && run.flaw().is_none()
    {
        let session = OsStr::from_bytes(run.command.as_bytes());
        let lines = penfold_session::fuzzing::command_lines(Path::new(session), &run);
        let cwd = run.cwd.as_ref().map(|_| String::new());
        let env = run.env.iter().map(|(name, _)| (name.clone(), String::new())).collect();
        let plain = penfold_session::fuzzing::command_lines(
            Path::new(""),
            &ShellCommand { cwd, env, ..ShellCommand::default() },
        );
        assert_eq!(unquoted(&lines), unquoted(&plain));
    }
});
