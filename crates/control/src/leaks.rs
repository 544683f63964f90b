//! What outlived its sandbox: found by looking at the host, ended on request.
//!
//! Unknown means alive. A thing is a leak only when no record of it is held by a supervisor, no process that belongs
//! to it descends from a penfold, and all of that could be read.

mod alive;
mod collect;
mod directory_lock;
pub mod foreign;
mod holders;
mod homes;
pub(crate) mod remains;
mod search;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use penfold_process::ProcessId;
use serde::Serialize;

pub(crate) use alive::Descent;
pub use alive::{Belongs, belongs};
pub use collect::collect;
pub use holders::holders;

/// A process of a leak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Member {
    /// Who.
    #[serde(flatten)]
    pub id: ProcessId,
    /// The name of its main thread.
    pub name: String,
    /// Its command line, shortened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// What kind of thing outlived its sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Thing {
    /// A record whose supervisors are gone, with all that it names.
    Record {
        /// Where it is.
        path: PathBuf,
        /// The command of the sandbox, for people; empty when the record is damaged.
        command: String,
        /// Whether it says what was meant to be; one that does not was never used.
        begun: bool,
    },
    /// Processes that carry the marker of a sandbox without a record.
    Processes,
    /// A cgroup of a sandbox without a record.
    Cgroup {
        /// Its directory.
        path: PathBuf,
    },
    /// A scratch directory of a sandbox without a record.
    Directory {
        /// Where it is.
        path: PathBuf,
    },
    /// The record of a sandbox that has ended, kept on purpose for its log and exit code: no leak.
    Ended {
        /// Where it is.
        path: PathBuf,
        /// The command of the sandbox, for people.
        command: String,
    },
    /// A name that no living sandbox holds.
    Name {
        /// Its file.
        path: PathBuf,
    },
    /// A file whose writer died before it had its name, in the record of a sandbox that has ended.
    File {
        /// Where it is.
        path: PathBuf,
    },
    /// The control socket of a supervisor that lives and whose record is gone.
    Socket {
        /// Where it was bound.
        path: PathBuf,
    },
    /// A record that is looked after by a supervisor which cannot be asked: its control socket is gone.
    Unreachable {
        /// The record.
        path: PathBuf,
    },
}

impl Thing {
    /// Every kind, as [`Thing::kind`] calls it.
    pub const KINDS: [&'static str; 9] =
        ["record", "processes", "cgroup", "directory", "ended", "name", "file", "socket", "unreachable"];

    /// What kind of thing it is, as the JSON has it.
    pub fn kind(&self) -> &'static str {
        match self {
            Thing::Record { .. } => "record",
            Thing::Processes => "processes",
            Thing::Cgroup { .. } => "cgroup",
            Thing::Directory { .. } => "directory",
            Thing::Ended { .. } => "ended",
            Thing::Name { .. } => "name",
            Thing::File { .. } => "file",
            Thing::Socket { .. } => "socket",
            Thing::Unreachable { .. } => "unreachable",
        }
    }

    /// Where it is, if it has a place.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Thing::Processes => None,
            Thing::Record { path, .. }
            | Thing::Cgroup { path }
            | Thing::Directory { path }
            | Thing::Ended { path, .. }
            | Thing::Name { path }
            | Thing::File { path }
            | Thing::Socket { path }
            | Thing::Unreachable { path } => Some(path),
        }
    }
}

/// Something that outlived its sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Leak {
    /// The sandbox, as shown; empty when a name does not say whose it was.
    pub id: String,
    /// The name of the sandbox, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is.
    #[serde(flatten)]
    pub thing: Thing,
    /// The processes in it.
    pub processes: Vec<Member>,
    /// For how long it has been there at least, in seconds.
    pub age_s: u64,
    /// Whether it may be ended unasked. What is not may be what another state root keeps, and is ended only when it is named.
    #[serde(skip)]
    pub claimed: bool,
}

impl Leak {
    /// For how long it has been there at least.
    pub fn age(&self) -> Duration {
        Duration::from_secs(self.age_s)
    }

    /// Whether its age is no reason to leave it alone: its lock says that nobody looks after it.
    pub fn is_certain(&self) -> bool {
        matches!(self.thing, Thing::Record { begun: true, .. } | Thing::Name { .. } | Thing::File { .. })
    }

    /// Whether a supervisor looks after it, so that it is ended by asking for that and not collected.
    pub fn is_alive(&self) -> bool {
        matches!(self.thing, Thing::Socket { .. } | Thing::Unreachable { .. })
    }
}

/// What a look over the host has found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Survey {
    /// The leaks, of the records first.
    pub leaks: Vec<Leak>,
    /// What is kept on purpose until it is old: records of sandboxes that have ended.
    #[serde(skip)]
    pub kept: Vec<Leak>,
    /// Whether everything that matters could be read. Only then is what has no record known to be nobody's.
    pub complete: bool,
    /// What could not be read.
    pub unread: Vec<String>,
    /// The sandboxes whose records could not be read: each may be alive.
    #[serde(skip)]
    pub unjudged: Vec<String>,
}

/// Looks for what outlived its sandbox. Records are kept below `state_root`, scratch directories in `temporary`.
///
/// # Errors
/// When /proc cannot be read at all.
pub fn look(state_root: &Path, temporary: &[PathBuf]) -> io::Result<Survey> {
    search::search(state_root, temporary)
}

/// For how long a file or directory has been as it is, in seconds.
fn age(path: &Path) -> u64 {
    let changed = std::fs::symlink_metadata(path).map_or(i64::MAX, |meta| meta.mtime().max(meta.ctime()));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    now.saturating_sub(u64::try_from(changed).unwrap_or(0))
}
