//! The calls of `process.Process` and `filesystem.Filesystem`, and the fields of their messages.

use super::Kind::{Bytes, Flag, Long, Map, Message, Messages, Number, Signed, Text, Texts, Time, Word};
use super::{Field, Shape};

/// Returns the shapes of the messages of a call: those of its request and those of its answer.
pub(crate) fn call(path: &str) -> Option<(&'static Shape, &'static Shape)> {
    let shapes = match path {
        "/process.Process/List" => (NONE, PROCESSES),
        "/process.Process/Start" => (START, EVENT),
        "/process.Process/Connect" => (SELECT, EVENT),
        "/process.Process/Update" => (UPDATE, NONE),
        "/process.Process/StreamInput" => (STREAM_INPUT, NONE),
        "/process.Process/SendInput" => (SEND_INPUT, NONE),
        "/process.Process/SendSignal" => (SEND_SIGNAL, NONE),
        "/process.Process/CloseStdin" => (SELECT, NONE),
        "/filesystem.Filesystem/Stat" | "/filesystem.Filesystem/MakeDir" => (PATH, ENTRY),
        "/filesystem.Filesystem/Move" => (MOVE, ENTRY),
        "/filesystem.Filesystem/ListDir" => (LIST, ENTRIES),
        "/filesystem.Filesystem/Remove" => (PATH, NONE),
        "/filesystem.Filesystem/WatchDir" => (WATCH, WATCHED),
        "/filesystem.Filesystem/CreateWatcher" => (WATCH, WATCHER),
        "/filesystem.Filesystem/GetWatcherEvents" => (WATCHER, EVENTS),
        "/filesystem.Filesystem/RemoveWatcher" => (WATCHER, NONE),
        _ => return None,
    };
    Some(shapes)
}

const NONE: &Shape = &[];

const CONFIG: &Shape =
    &[Field(1, "cmd", Text), Field(2, "args", Texts), Field(3, "envs", Map), Field(4, "cwd", Text)];
const PROCESS: &Shape =
    &[Field(1, "config", Message(CONFIG)), Field(2, "pid", Number), Field(3, "tag", Text)];
const PROCESSES: &Shape = &[Field(1, "processes", Messages(PROCESS))];

const SIZE: &Shape = &[Field(1, "cols", Number), Field(2, "rows", Number)];
const PTY: &Shape = &[Field(1, "size", Message(SIZE))];
const START: &Shape = &[
    Field(1, "process", Message(CONFIG)),
    Field(2, "pty", Message(PTY)),
    Field(3, "tag", Text),
    Field(4, "stdin", Flag),
];

const SELECTOR: &Shape = &[Field(1, "pid", Number), Field(2, "tag", Text)];
const SELECT: &Shape = &[Field(1, "process", Message(SELECTOR))];
const UPDATE: &Shape = &[Field(1, "process", Message(SELECTOR)), Field(2, "pty", Message(PTY))];
const SEND_SIGNAL: &Shape = &[Field(1, "process", Message(SELECTOR)), Field(2, "signal", Number)];

const INPUT: &Shape = &[Field(1, "stdin", Bytes), Field(2, "pty", Bytes)];
const SEND_INPUT: &Shape = &[Field(1, "process", Message(SELECTOR)), Field(2, "input", Message(INPUT))];
const STREAMED: &Shape = &[Field(2, "input", Message(INPUT))];
const STREAM_INPUT: &Shape = &[
    Field(1, "start", Message(SELECT)),
    Field(2, "data", Message(STREAMED)),
    Field(3, "keepalive", Message(NONE)),
];

const STARTED: &Shape = &[Field(1, "pid", Number)];
const OUTPUT: &Shape = &[Field(1, "stdout", Bytes), Field(2, "stderr", Bytes), Field(3, "pty", Bytes)];
const ENDED: &Shape = &[
    Field(1, "exitCode", Signed),
    Field(2, "exited", Flag),
    Field(3, "status", Text),
    Field(4, "error", Text),
];
const PROCESS_EVENT: &Shape = &[
    Field(1, "start", Message(STARTED)),
    Field(2, "data", Message(OUTPUT)),
    Field(3, "end", Message(ENDED)),
    Field(4, "keepalive", Message(NONE)),
];
const EVENT: &Shape = &[Field(1, "event", Message(PROCESS_EVENT))];

const KINDS: [&str; 4] =
    ["FILE_TYPE_UNSPECIFIED", "FILE_TYPE_FILE", "FILE_TYPE_DIRECTORY", "FILE_TYPE_SYMLINK"];
const CHANGES: [&str; 6] = [
    "EVENT_TYPE_UNSPECIFIED",
    "EVENT_TYPE_CREATE",
    "EVENT_TYPE_WRITE",
    "EVENT_TYPE_REMOVE",
    "EVENT_TYPE_RENAME",
    "EVENT_TYPE_CHMOD",
];

const PATH: &Shape = &[Field(1, "path", Text)];
const MOVE: &Shape = &[Field(1, "source", Text), Field(2, "destination", Text)];
const LIST: &Shape = &[Field(1, "path", Text), Field(2, "depth", Number)];
const FILE: &Shape = &[
    Field(1, "name", Text),
    Field(2, "type", Word(&KINDS)),
    Field(3, "path", Text),
    Field(4, "size", Long),
    Field(5, "mode", Number),
    Field(6, "permissions", Text),
    Field(7, "owner", Text),
    Field(8, "group", Text),
    Field(9, "modifiedTime", Time),
    Field(10, "symlinkTarget", Text),
    Field(11, "metadata", Map),
];
const ENTRY: &Shape = &[Field(1, "entry", Message(FILE))];
const ENTRIES: &Shape = &[Field(1, "entries", Messages(FILE))];

const WATCH: &Shape = &[
    Field(1, "path", Text),
    Field(2, "recursive", Flag),
    Field(3, "includeEntry", Flag),
    Field(4, "allowNetworkMounts", Flag),
];
const CHANGE: &Shape =
    &[Field(1, "name", Text), Field(2, "type", Word(&CHANGES)), Field(3, "entry", Message(FILE))];
const WATCHED: &Shape = &[
    Field(1, "start", Message(NONE)),
    Field(2, "filesystem", Message(CHANGE)),
    Field(3, "keepalive", Message(NONE)),
];
const WATCHER: &Shape = &[Field(1, "watcherId", Text)];
const EVENTS: &Shape = &[Field(1, "events", Messages(CHANGE))];
