//! The messages of `process.Process`, as JSON. A number may come as a text, a field that is missing is as one that is empty.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penfold_state::wire::Size;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A command.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ProcessConfig {
    pub(super) cmd: String,
    pub(super) args: Vec<String>,
    pub(super) envs: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cwd: Option<String>,
}

/// A terminal.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Pty {
    #[serde(default)]
    size: PtySize,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct PtySize {
    #[serde(default)]
    cols: u32,
    #[serde(default)]
    rows: u32,
}

impl Pty {
    /// The size; 80 × 24 where none was given.
    pub(super) fn size(&self) -> Size {
        let side = |given: u32, usual| u16::try_from(given).ok().filter(|&side| side > 0).unwrap_or(usual);
        Size { rows: side(self.size.rows, 24), columns: side(self.size.cols, 80) }
    }
}

/// What `Start` asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StartRequest {
    pub(super) process: ProcessConfig,
    pub(super) pty: Option<Pty>,
    pub(super) tag: Option<String>,
    /// Whether input can be sent; clients that do not say so expect it.
    pub(super) stdin: Option<bool>,
}

/// The command that a client means.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Selector {
    #[serde(deserialize_with = "number")]
    pub(super) pid: Option<u32>,
    pub(super) tag: Option<String>,
}

/// What has only a command.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SelectRequest {
    pub(super) process: Selector,
}

/// What `Update` asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct UpdateRequest {
    pub(super) process: Selector,
    pub(super) pty: Option<Pty>,
}

/// What `SendSignal` asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SignalRequest {
    pub(super) process: Selector,
    pub(super) signal: Value,
}

/// Input for a command.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Input {
    stdin: Option<Bytes>,
    pty: Option<Bytes>,
}

impl Input {
    /// The bytes, and whether they are for a terminal.
    pub(super) fn bytes(self) -> (Vec<u8>, bool) {
        match (self.stdin, self.pty) {
            (None, Some(Bytes(bytes))) => (bytes, true),
            (stdin, _) => (stdin.map(|Bytes(bytes)| bytes).unwrap_or_default(), false),
        }
    }
}

/// What `SendInput` asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct InputRequest {
    pub(super) process: Selector,
    pub(super) input: Input,
}

/// A message of `StreamInput`: one of its fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamInputRequest {
    pub(super) start: Option<SelectRequest>,
    pub(super) data: Option<StreamedInput>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamedInput {
    pub(super) input: Input,
}

/// Bytes, which JSON has as base64.
#[derive(Debug, Clone, Default)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD.decode(text).map(Bytes).map_err(serde::de::Error::custom)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(&self.0))
    }
}

/// An event of a command.
#[derive(Debug, Serialize)]
pub(super) struct EventMessage {
    pub(super) event: Event,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Event {
    Start { pid: u32 },
    Data(Output),
    End(End),
    Keepalive {},
}

/// What a command has written.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Output {
    Stdout(Bytes),
    Stderr(Bytes),
    Pty(Bytes),
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct End {
    pub(super) exit_code: i32,
    pub(super) exited: bool,
    pub(super) status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

/// A command in a list.
#[derive(Debug, Serialize)]
pub(super) struct ProcessInfo {
    pub(super) config: ProcessConfig,
    pub(super) pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tag: Option<String>,
}

fn number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let given = match Option::<Value>::deserialize(from)? {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text.parse().ok(),
        Some(given) => given.as_u64().and_then(|number| u32::try_from(number).ok()),
    };
    given.map(Some).ok_or_else(|| serde::de::Error::custom("a pid is a number"))
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn messages_are_read_as_clients_write_them() {
        let start: StartRequest = from_value(
            json!({ "process": { "cmd": "/bin/bash", "args": ["-l"], "unknown": 1 }, "stdin": false }),
        )
        .unwrap();
        assert_eq!((start.process.cmd.as_str(), start.stdin, start.tag), ("/bin/bash", Some(false), None));
        let by_pid: SelectRequest = from_value(json!({ "process": { "pid": "7" } })).unwrap();
        assert_eq!(by_pid.process.pid, Some(7));
        let input: Input = from_value(json!({ "pty": "YWI=" })).unwrap();
        assert_eq!(input.bytes(), (b"ab".to_vec(), true));
        assert!(from_value::<Input>(json!({ "stdin": "%" })).is_err());
        let pty: Pty = from_value(json!({ "size": { "cols": 100 } })).unwrap();
        assert_eq!(pty.size(), Size { rows: 24, columns: 100 });
    }

    #[test]
    fn events_are_written_as_clients_read_them() {
        let text = |event| serde_json::to_value(EventMessage { event }).unwrap();
        assert_eq!(text(Event::Start { pid: 3 }), json!({ "event": { "start": { "pid": 3 } } }));
        let data = Event::Data(Output::Stderr(Bytes(b"ab".to_vec())));
        assert_eq!(text(data), json!({ "event": { "data": { "stderr": "YWI=" } } }));
        assert_eq!(text(Event::Keepalive {}), json!({ "event": { "keepalive": {} } }));
        let end = End { exit_code: 3, exited: true, status: "exit status 3".to_owned(), error: None };
        let expected =
            json!({ "event": { "end": { "exitCode": 3, "exited": true, "status": "exit status 3" } } });
        assert_eq!(text(Event::End(end)), expected);
    }
}
