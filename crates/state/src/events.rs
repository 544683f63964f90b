//! What happened to detached sandboxes: `<root>/events.jsonl`, a line for each event, for those who watch or look back.
//!
//! Events are news, never evidence: nothing of penfold acts on them, and a sandbox whose events cannot be written loses
//! nothing else. Invariants: a line is one write(2) to the end of the file, at most 4 KiB long; the file is opened anew
//! for each, never through a link; it and the one before it are bounded.

mod follow;
mod reader;
mod root_watch;
mod store;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use penfold_teardown::report::Step;
use penfold_teardown::{Cause, Level};
use serde::{Deserialize, Serialize};

use crate::files::Files;
use crate::intent::Intent;
use crate::json::SCHEMA;
use crate::outcome::Status;
use crate::state::{Exited, Word};

pub use follow::Waited;
pub use reader::{Entry, From, Reader};
pub use store::append;

/// Something that happened to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The version of this format.
    pub schema: u32,
    /// When, in nanoseconds since 1970.
    pub time_ns: u64,
    /// To which sandbox.
    #[serde(flatten)]
    pub about: About,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// The sandbox that an event is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Its id, as shown.
    pub id: String,
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its labels, as far as there is room for them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum What {
    /// The command runs.
    Start {
        /// It, shortened.
        command: Vec<String>,
        /// How membership is known.
        level: Level,
        /// Its first process, where that could be seen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        leader: Option<i32>,
    },
    /// A command was put into the sandbox.
    Exec {
        /// Its number in the sandbox, from 1.
        number: u32,
        /// It, shortened.
        command: Vec<String>,
    },
    /// How the command ended is known.
    Exit {
        /// How the leader ended; nothing when that could not be seen.
        exit: Option<Status>,
        /// Why.
        cause: Cause,
        /// The word for that.
        word: Word,
    },
    /// The sandbox is being ended, and not because its command is over.
    Stop {
        /// Why.
        cause: Cause,
        /// How long members have after the polite signal, in milliseconds; nothing when they are killed at once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_ms: Option<u64>,
    },
    /// The teardown has done something.
    TeardownStep {
        /// What: `ask`, `kill`, `verify`, `release cgroup …`.
        step: String,
        /// When it began, in microseconds since the teardown began.
        at_us: u64,
        /// How long it took, in microseconds.
        took_us: u64,
        /// What went wrong, if anything.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// Something outlived its sandbox and was found.
    Leak {
        /// What it is, with its place.
        what: String,
        /// What became of it: `removed`, `failed`.
        outcome: String,
        /// Why it could not be removed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The sandbox was found with nobody looking after it, and what was left was ended.
    Lost {
        /// How the leader ended; nothing when that is not known.
        exit: Option<Status>,
        /// Whether it was seen that nothing is left.
        verified: bool,
        /// How many things are left nevertheless.
        survivors: usize,
    },
    /// A process that penfold did not start was taken into the sandbox.
    Adopted {
        /// The process.
        pid: i32,
        /// Its command, shortened.
        command: Vec<String>,
    },
}

/// The kinds of events, as they are written.
pub const KINDS: &[&str] = &["start", "exec", "exit", "stop", "teardown-step", "leak", "lost", "adopted"];

impl What {
    /// Its kind, as it is written.
    pub fn kind(&self) -> &'static str {
        match self {
            What::Start { .. } => "start",
            What::Exec { .. } => "exec",
            What::Exit { .. } => "exit",
            What::Stop { .. } => "stop",
            What::TeardownStep { .. } => "teardown-step",
            What::Leak { .. } => "leak",
            What::Lost { .. } => "lost",
            What::Adopted { .. } => "adopted",
        }
    }
}

impl std::convert::From<&Exited> for What {
    fn from(exited: &Exited) -> What {
        What::Exit { exit: exited.exit, cause: exited.cause, word: exited.word() }
    }
}

impl std::convert::From<&Step> for What {
    fn from(step: &Step) -> What {
        let Step { what, at_us, took_us, error } = step.clone();
        What::TeardownStep { step: what, at_us, took_us, error }
    }
}

/// Where the events of one sandbox are written.
#[derive(Debug, Clone)]
pub struct Journal {
    root: PathBuf,
    about: About,
}

impl Journal {
    /// Events about a sandbox below `root`.
    pub fn new(root: &Path, about: About) -> Journal {
        // Whoever keeps it may go to another directory.
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        Journal { root, about }
    }

    /// Events about the sandbox of a record.
    pub fn of(files: &Files, intent: &Intent) -> Journal {
        let root = files.path().ancestors().nth(2).unwrap_or(files.path());
        let about =
            About { id: files.name().to_owned(), name: intent.name.clone(), labels: intent.labels.clone() };
        Journal::new(root, about)
    }

    /// Writes down what happened now. Where that cannot be, nobody hears of it and nothing else changes.
    pub fn tell(&self, what: impl IntoIterator<Item = What>) {
        let time_ns = now_ns();
        let events: Vec<Event> = what
            .into_iter()
            .map(|what| Event { schema: SCHEMA, time_ns, about: self.about.clone(), what })
            .collect();
        let _ = append(&self.root, &events);
    }
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
