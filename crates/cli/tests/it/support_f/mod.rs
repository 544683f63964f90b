//! What the tests of detached sandboxes share: a sandbox by its id, the processes around it by handle, what its files
//! say, and words for its control socket.

#![allow(dead_code, unreachable_pub, reason = "every test binary takes its own part of this")]

pub mod socket;

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use penfold_testkit::proc::{self, Handle, Identity};
pub use penfold_testkit::until;
use rustix::process::Signal;
use serde_json::Value;

/// The containment asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Cgroup,
    Subreaper,
}

impl Level {
    pub fn word(self) -> &'static str {
        match self {
            Level::Cgroup => "cgroup",
            Level::Subreaper => "subreaper",
        }
    }
}

/// The record of a detached sandbox, and who looks after it.
pub struct Sandbox {
    pub id: String,
    pub record: PathBuf,
}

impl Sandbox {
    /// The one whose id `run -d` has printed.
    ///
    /// # Errors
    /// When it has printed anything else.
    pub fn printed(root: &Path, out: &str) -> Result<Sandbox, String> {
        let id = out.strip_suffix('\n').unwrap_or_default();
        let short = id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !short {
            return Err(format!("{out:?} is no id"));
        }
        Ok(Sandbox { id: id.to_owned(), record: root.join("sandboxes").join(id) })
    }

    /// A file of the record, if it is there and whole.
    pub fn file(&self, name: &str) -> Option<Value> {
        json(&self.record.join(name))
    }

    /// Why it ended, once it has; by `exit.json`, or else by the report, where the command never ran.
    pub fn cause(&self) -> Option<String> {
        let from = |name: &str| Some(self.file(name)?.get("cause")?.as_str()?.to_owned());
        from("exit.json").or_else(|| from("report.json"))
    }

    /// Whether it has ended, by its report.
    pub fn has_ended(&self) -> bool {
        self.record.join("report.json").is_file()
    }

    /// Outer and inner, in this order, by handle.
    pub fn supervisors(&self) -> Vec<Handle> {
        let state = self.file("state.json").unwrap_or_default();
        let told = state.get("supervisors").and_then(Value::as_array).cloned().unwrap_or_default();
        told.iter().filter_map(identity).filter_map(|id| Handle::open(id).ok().flatten()).collect()
    }

    /// The first process in it, by handle.
    pub fn leader(&self) -> Option<Handle> {
        Handle::open(identity(self.file("state.json")?.get("leader")?)?).ok().flatten()
    }

    /// SIGKILL to outer and inner at once: neither can act on the death of the other.
    ///
    /// # Errors
    /// When there are not two of them, or one of them does not end.
    pub fn kill_both(&self) -> Result<(), String> {
        let both = self.supervisors();
        if both.len() != 2 {
            return Err(format!("{} supervisors", both.len()));
        }
        // The death of a parent wakes its child: the inner first.
        let tell = |error: std::io::Error| error.to_string();
        for process in &both {
            process.signal(Signal::STOP).map_err(tell)?;
        }
        let stopped = |process: &Handle| proc::stat(process.id.pid).is_some_and(|stat| stat.state == 'T');
        until(Duration::from_millis(500), || both.iter().all(stopped));
        for process in both.iter().rev() {
            process.signal(Signal::KILL).map_err(tell)?;
        }
        let ended = both.iter().all(|process| process.wait(Some(Duration::from_secs(5))));
        if ended { Ok(()) } else { Err("a killed supervisor has not ended".to_owned()) }
    }
}

fn identity(told: &Value) -> Option<Identity> {
    let pid = i32::try_from(told.get("pid")?.as_i64()?).ok()?;
    Some(Identity { pid, start: told.get("start")?.as_u64()? })
}

/// A file of JSON, if it is there and whole.
pub fn json(path: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// What a command of ours has said, for messages.
pub fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    format!("{}: {} {}", output.status, text(&output.stdout), text(&output.stderr))
}

/// The words of `ps -a --json` about one sandbox.
pub fn word(ps: &Output, id: &str) -> Option<String> {
    let all: Value = serde_json::from_slice(&ps.stdout).ok()?;
    let one = all.as_array()?.iter().find(|one| one.get("id").and_then(Value::as_str) == Some(id))?.clone();
    Some(one.get("status")?.as_str()?.to_owned())
}

/// The ids of all records below a root.
pub fn records(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root.join("sandboxes")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Numbers that look random and come again with the same seed.
pub struct Dice(u64);

impl Dice {
    pub fn new() -> Dice {
        let mut seed = [0_u8; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty()).unwrap();
        Dice(u64::from_ne_bytes(seed) | 1)
    }

    /// The seed, before anything was thrown.
    pub fn seed(&self) -> u64 {
        self.0
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
