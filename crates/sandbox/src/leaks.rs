//! What outlived its sandbox: found by looking at the host, ended on request.
//!
//! Unknown means alive. A thing is a leak only when no record of it is held by a supervisor, no process that belongs
//! to it descends from a penfold, and all of that could be read.

mod alive;
mod collect;
mod search;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use penfold_process::ProcessId;
use serde::Serialize;

pub use collect::collect;

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
}

/// Something that outlived its sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Leak {
    /// The sandbox, as shown.
    pub id: String,
    /// What it is.
    #[serde(flatten)]
    pub thing: Thing,
    /// The processes in it.
    pub processes: Vec<Member>,
    /// For how long it has been there at least, in seconds.
    pub age_s: u64,
}

impl Leak {
    /// For how long it has been there at least.
    pub fn age(&self) -> Duration {
        Duration::from_secs(self.age_s)
    }

    /// Whether its age is no reason to leave it alone: a record says by its lock that nobody looks after it.
    pub fn is_certain(&self) -> bool {
        matches!(self.thing, Thing::Record { begun: true, .. })
    }
}

/// What a look over the host has found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Survey {
    /// The leaks, of the records first.
    pub leaks: Vec<Leak>,
    /// Whether everything that matters could be read. Only then is what has no record known to be nobody's.
    pub complete: bool,
    /// What could not be read.
    pub unread: Vec<String>,
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
