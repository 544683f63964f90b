//! Events of detached sandboxes: `<root>/events.jsonl`, a line for each event, for users who watch or look back.
//!
//! Events are news, never evidence: no part of penfold acts on them. A sandbox whose events cannot be written loses
//! nothing else.
//!
//! Invariants:
//! - A line is one write(2) to the end of the file, at most 4 KiB long.
//! - The file is opened anew for each event, never through a link.
//! - The file and its predecessor are bounded.

mod follow;
mod logged;
mod reader;
mod root_watch;
mod sentence;
mod store;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use penfold_teardown::report::{RmdirBusy, TeardownStep};
use penfold_teardown::{Cause, EndedMember, Findings, Level};
use serde::{Deserialize, Serialize};

use crate::event_log::EventLog;
use crate::files::Files;
use crate::intent::Intent;
use crate::json::SCHEMA;
use crate::life::Life;
use crate::name_text;
use crate::outcome::ExitStatus;
use crate::requester::Requester;
use crate::state::{CommandExit, Status};

pub use follow::EventWaitEnd;
pub use reader::{EventEntry, EventPlace, EventPosition, EventReader};
pub use store::append_events;
pub(crate) use store::open_plain;

/// An event of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The version of this format.
    pub schema: u32,
    /// The time of the event, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The sandbox.
    #[serde(flatten)]
    pub about: EventSubject,
    /// The kind of the event, with its details.
    #[serde(flatten)]
    pub what: EventKind,
}

/// The sandbox that an event is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventSubject {
    /// The short id.
    pub id: String,
    /// The name, if the sandbox has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The labels, as far as they fit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The number of the life that the event is about; `None` means the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life: Option<u32>,
}

impl EventSubject {
    /// Returns the name that the sandbox holds below its state root, if it has one.
    #[must_use]
    pub fn held_name(&self) -> Option<String> {
        self.name.as_ref().map(|name| name_text::held_name(name_text::tenant_of(&self.labels), name))
    }
}

/// The kind of an event, with its details.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum EventKind {
    /// The command runs.
    Start {
        /// The command, shortened.
        command: Vec<String>,
        /// How membership is known.
        level: Level,
        /// The pid of the leader, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        leader: Option<i32>,
        /// The id of the former life, if an older penfold has restarted the sandbox under a new id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        restart_of: Option<String>,
        /// The number of restarts since the first life, if this is a restart.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        restarts: Option<u32>,
    },
    /// `penfold exec` has started a command in the sandbox.
    Exec {
        /// The number of the exec in the sandbox, from 1.
        number: u32,
        /// The command, shortened.
        command: Vec<String>,
    },
    /// The command has ended.
    Exit {
        /// How the leader ended; `None` if unknown.
        exit: Option<ExitStatus>,
        /// Why the sandbox ended.
        cause: Cause,
        /// The status that follows.
        #[serde(rename = "word")]
        status: Status,
    },
    /// The sandbox is being ended, for another reason than the leader's exit.
    Stop {
        /// The reason.
        cause: Cause,
        /// The time that members have after the polite signal, in milliseconds; `None` when they are killed at once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_ms: Option<u64>,
        /// Who requested the end, if a request or signal ended the sandbox.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Box<Requester>>,
    },
    /// The teardown has completed a step.
    TeardownStep {
        /// The step: `ask`, `kill`, `verify`, `release cgroup …`.
        step: String,
        /// The start of the step, in microseconds since the teardown began.
        at_us: u64,
        /// The duration of the step, in microseconds.
        took_us: u64,
        /// The error, if the step failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// The kernel refused to remove the cgroup of the sandbox although it seemed to be empty.
    RmdirBusy {
        /// The directory.
        path: String,
        /// The error number.
        errno: i32,
        /// The first processes that were found inside.
        pids: Vec<i32>,
        /// The number of refusals.
        tries: u32,
        /// The time from the first refusal to the removal, in microseconds.
        took_us: u64,
    },
    /// A leak was found: something that outlived its sandbox.
    Leak {
        /// The kind of leak, with its path.
        what: String,
        /// What was done about the leak: `removed`, `failed`; at the end of a foreground sandbox `ended`, `not gone`.
        outcome: String,
        /// Why the leak could not be removed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The sandbox was found without a supervisor, and recovery ended its members.
    Lost {
        /// How the leader ended; `None` if unknown.
        exit: Option<ExitStatus>,
        /// Whether recovery verified that nothing is left.
        verified: bool,
        /// The number of survivors.
        survivors: usize,
        /// Who requested that the rest is ended, if a user did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Box<Requester>>,
    },
    /// The command failed, and the sandbox is not restarted, or not yet, although `--restart` was given.
    NoRestart {
        /// The reason.
        reason: String,
    },
    /// A process that penfold did not start was adopted into the sandbox.
    Adopted {
        /// The pid of the process.
        pid: i32,
        /// The command of the process, shortened.
        command: Vec<String>,
    },
}

/// The kinds of events, as the file names them.
pub const KINDS: &[&str] = &[
    "start",
    "exec",
    "exit",
    "stop",
    "teardown-step",
    "rmdir-busy",
    "leak",
    "lost",
    "no-restart",
    "adopted",
];

impl EventKind {
    /// Returns the event that a foreground sandbox left something, or could not be verified; `None` if there is nothing to say. `left`
    /// are the members that were left.
    pub fn leak<'a>(findings: &Findings, left: impl Iterator<Item = &'a EndedMember>) -> Option<EventKind> {
        let what = left_in_words(findings, left)?;
        let outcome = if findings.verified { "ended" } else { "not gone" }.to_owned();
        Some(EventKind::Leak { what, outcome, reason: None })
    }

    /// Returns the kind, as the file names it.
    pub fn kind(&self) -> &'static str {
        match self {
            EventKind::Start { .. } => "start",
            EventKind::Exec { .. } => "exec",
            EventKind::Exit { .. } => "exit",
            EventKind::Stop { .. } => "stop",
            EventKind::TeardownStep { .. } => "teardown-step",
            EventKind::RmdirBusy { .. } => "rmdir-busy",
            EventKind::Leak { .. } => "leak",
            EventKind::Lost { .. } => "lost",
            EventKind::NoRestart { .. } => "no-restart",
            EventKind::Adopted { .. } => "adopted",
        }
    }
}

impl std::convert::From<&CommandExit> for EventKind {
    fn from(exited: &CommandExit) -> EventKind {
        EventKind::Exit { exit: exited.exit, cause: exited.cause, status: exited.status() }
    }
}

impl std::convert::From<&TeardownStep> for EventKind {
    fn from(step: &TeardownStep) -> EventKind {
        let TeardownStep { what, at_us, took_us, error } = step.clone();
        EventKind::TeardownStep { step: what, at_us, took_us, error }
    }
}

impl std::convert::From<&RmdirBusy> for EventKind {
    fn from(busy: &RmdirBusy) -> EventKind {
        let RmdirBusy { path, errno, pids, tries, took_us } = busy.clone();
        let path = path.display().to_string();
        EventKind::RmdirBusy { path, errno, pids, tries, took_us }
    }
}

/// Says what was left: the survivors, or else the members; `None` if nothing was.
fn left_in_words<'a>(findings: &Findings, left: impl Iterator<Item = &'a EndedMember>) -> Option<String> {
    /// The most that are named.
    const MOST: usize = 4;
    let mut words: Vec<String> = findings.survivors.iter().map(ToString::to_string).collect();
    if findings.verified {
        let member = |member: &EndedMember| {
            let name = member.command.as_deref().unwrap_or(&member.name);
            format!("{name} (pid {})", member.pid).trim_start().to_owned()
        };
        words = left.map(member).collect();
    }
    let others = words.len().saturating_sub(MOST);
    words.truncate(MOST);
    let text = words.join(", ");
    match (words.is_empty(), others) {
        (true, _) if findings.verified => None,
        (true, _) => Some("it could not be looked at".to_owned()),
        (false, 0) => Some(text),
        (false, others) => Some(format!("{text} and {others} more")),
    }
}

/// Writes the events of one sandbox.
#[derive(Debug, Clone)]
pub struct Journal {
    root: PathBuf,
    about: EventSubject,
    /// Where the events are written too.
    event_log: Option<EventLog>,
}

impl Journal {
    /// Makes a journal for a sandbox below `root`.
    pub fn new(root: &Path, about: EventSubject) -> Journal {
        // The process may change its working directory later.
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        Journal { root, about, event_log: None }
    }

    /// Makes a journal for the sandbox of a record.
    pub fn of(files: &Files, intent: &Intent) -> Journal {
        let root = files.path().ancestors().nth(2).unwrap_or(files.path());
        let about = EventSubject {
            id: files.name().to_owned(),
            name: intent.name.clone(),
            labels: intent.labels.clone(),
            life: intent.life().map(Life::number),
        };
        Journal::new(root, about).with_event_log(intent.event_log.clone())
    }

    /// Writes all events to this event log too.
    #[must_use]
    pub fn with_event_log(self, event_log: Option<EventLog>) -> Journal {
        Journal { event_log, ..self }
    }

    /// Writes an event with the current time. If the write fails, the event is lost and nothing else changes.
    pub fn publish(&self, what: impl IntoIterator<Item = EventKind>) {
        let time_ns = now_ns();
        let events: Vec<Event> = what
            .into_iter()
            .map(|what| Event { schema: SCHEMA, time_ns, about: self.about.clone(), what })
            .collect();
        let _ = append_events(&self.root, &events);
        if let Some(event_log) = &self.event_log {
            let _ = logged::write_events(event_log, &events);
        }
    }
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
