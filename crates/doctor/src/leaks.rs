//! Leaks: the remains of ended sandboxes, found by a search of the host, ended on request.
//!
//! Unknown means alive. Something is a leak under three conditions: no supervisor holds a record of it, none of its
//! processes descends from a penfold process, and everything that shows this could be read.

mod collect;
mod gc_rules;
mod holders;
mod homes;
mod remains;
mod repeated;
mod search;
mod spared_notes;
mod unfinished;
mod words;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use penfold_resource::traces::Trace;
use serde::Serialize;

use crate::Member;

pub use collect::collect_leak;
pub use gc_rules::{GcRules, KeepReason, USUAL_AGE, named_sandbox, publish_removal};
pub use holders::path_holders;
pub use spared_notes::prune_spared;
pub use words::{age_in_words, describe_leak};

/// The kind of a leak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Thing {
    /// Members of a sandbox that could not be ended, and live.
    Survivor {
        /// Whether a supervisor goes on to kill them.
        supervised: bool,
        /// Whether root could end one of them, and this user may not.
        #[serde(rename = "not_permitted")]
        is_refused: bool,
        /// Their pids; `/proc` may hide them.
        pids: Vec<i32>,
        /// Why they live, a sentence each.
        reasons: Vec<String>,
    },
    /// A record without a supervisor, with all the resources that it names.
    Record {
        /// The path of the record.
        #[serde(with = "penfold_process::path_text")]
        path: PathBuf,
        /// The command of the sandbox, for people; empty when the record is damaged.
        command: String,
        /// Whether the record has an intent; without an intent it was never used.
        begun: bool,
    },
    /// Processes that carry the marker of a sandbox without a record.
    Processes,
    /// A cgroup of a sandbox without a record.
    Cgroup {
        /// The directory of the cgroup.
        #[serde(with = "penfold_process::path_text")]
        path: PathBuf,
    },
    /// A directory of a sandbox without a record.
    Directory {
        /// The path of the directory.
        #[serde(with = "penfold_process::path_text")]
        path: PathBuf,
        /// The boot in the mark of a workspace, a directory for sockets or of an overlay. The name alone shows that a scratch
        /// directory belongs to a sandbox.
        #[serde(rename = "marked_in_boot", skip_serializing_if = "Option::is_none")]
        boot: Option<String>,
    },
    /// A network namespace of a sandbox without a record.
    Netns {
        /// The file that names the namespace.
        #[serde(with = "penfold_process::path_text")]
        path: PathBuf,
    },
    /// A link of a sandbox without a record.
    Link {
        /// The name.
        #[serde(rename = "link")]
        name: String,
    },
    /// A mount of a sandbox without a record.
    Mount {
        /// The mount point.
        #[serde(with = "penfold_process::path_text")]
        path: PathBuf,
        /// Whether it is an overlay, and not a tmpfs.
        is_overlay: bool,
    },
    /// A loop device whose backing file is in a directory of a sandbox without a record.
    Loop {
        /// The backing file.
        #[serde(with = "penfold_process::path_text")]
        path: PathBuf,
        /// The name of the device, such as `loop3`.
        device: String,
    },
    /// The record of an ended sandbox, kept on purpose for its log and exit code: no leak.
    Ended {
        /// The path of the record.
        #[serde(with = "penfold_process::path_text")]
        path: PathBuf,
        /// The command of the sandbox, for people.
        command: String,
    },
    /// A container of `penfold oci` that its delegate does not know any more, or whose engine wanted it deleted, in vain.
    Container {
        /// Whether the delegate does not know it.
        is_lost: bool,
        /// The file of its note.
        #[serde(with = "penfold_process::path_text")]
        path: PathBuf,
    },
    /// A name that no living sandbox holds.
    Name {
        /// The file of the name.
        #[serde(with = "penfold_process::path_text")]
        path: PathBuf,
    },
    /// A temporary file in the record of an ended sandbox: its writer died before the rename.
    File {
        /// The path of the file.
        #[serde(with = "penfold_process::path_text")]
        path: PathBuf,
    },
    /// The control socket of a living supervisor whose record is gone.
    Socket {
        /// The path at which the socket was bound.
        #[serde(with = "penfold_process::path_text")]
        path: PathBuf,
    },
    /// A record with a supervisor that no client can reach: its control socket is gone.
    Unreachable {
        /// The path of the record.
        #[serde(with = "penfold_process::path_text")]
        path: PathBuf,
    },
}

impl Thing {
    /// Every kind, as [`Thing::kind`] names it.
    pub const KINDS: [&'static str; 15] = [
        "survivor",
        "record",
        "processes",
        "cgroup",
        "directory",
        "netns",
        "link",
        "mount",
        "loop",
        "ended",
        "container",
        "name",
        "file",
        "socket",
        "unreachable",
    ];

    /// Returns the kind, as in the JSON format.
    pub fn kind(&self) -> &'static str {
        match self {
            Thing::Survivor { .. } => "survivor",
            Thing::Record { .. } => "record",
            Thing::Processes => "processes",
            Thing::Cgroup { .. } => "cgroup",
            Thing::Directory { .. } => "directory",
            Thing::Netns { .. } => "netns",
            Thing::Link { .. } => "link",
            Thing::Mount { .. } => "mount",
            Thing::Loop { .. } => "loop",
            Thing::Ended { .. } => "ended",
            Thing::Container { .. } => "container",
            Thing::Name { .. } => "name",
            Thing::File { .. } => "file",
            Thing::Socket { .. } => "socket",
            Thing::Unreachable { .. } => "unreachable",
        }
    }

    /// Returns the trace of a resource that its mark shows; `None` for everything else.
    fn trace(&self) -> Option<Trace> {
        match self {
            Thing::Netns { path } => Some(Trace::Netns { path: path.clone() }),
            Thing::Link { name } => Some(Trace::Link { name: name.clone() }),
            Thing::Mount { path, is_overlay } => {
                Some(Trace::Mount { path: path.clone(), is_overlay: *is_overlay })
            }
            Thing::Loop { path, device } => Some(Trace::Loop { file: path.clone(), device: device.clone() }),
            Thing::Directory { path, boot } => {
                boot.as_ref().map(|boot| Trace::Directory { path: path.clone(), boot: boot.clone() })
            }
            _ => None,
        }
    }

    /// Returns the path, if the leak has one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Thing::Survivor { .. } | Thing::Processes | Thing::Link { .. } => None,
            Thing::Record { path, .. }
            | Thing::Cgroup { path }
            | Thing::Directory { path, .. }
            | Thing::Netns { path }
            | Thing::Mount { path, .. }
            | Thing::Loop { path, .. }
            | Thing::Ended { path, .. }
            | Thing::Container { path, .. }
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
    /// The short id of the sandbox; empty for a name without an id.
    pub id: String,
    /// The name of the sandbox, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The kind, with its details.
    #[serde(flatten)]
    pub thing: Thing,
    /// The processes in it.
    pub processes: Vec<Member>,
    /// The minimum time since the leak appeared, in seconds.
    pub age_s: u64,
    /// Whether the leak may be ended without a request. Otherwise another state root may keep it, and it is ended only
    /// when a user names it.
    #[serde(skip)]
    pub claimed: bool,
}

impl Leak {
    /// Returns the minimum time since the leak appeared.
    pub fn age(&self) -> Duration {
        Duration::from_secs(self.age_s)
    }

    /// Tells whether the leak is certain whatever its age: its lock shows that it has no supervisor, or its end was tried.
    pub fn is_certain(&self) -> bool {
        matches!(
            self.thing,
            Thing::Survivor { .. }
                | Thing::Record { begun: true, .. }
                | Thing::Name { .. }
                | Thing::File { .. }
        )
    }

    /// Tells whether two looks found the same leak.
    pub fn is_same(&self, other: &Leak) -> bool {
        let both = (&self.thing, &other.thing);
        self.id == other.id
            && (self.thing == other.thing || matches!(both, (Thing::Survivor { .. }, Thing::Survivor { .. })))
    }

    /// Tells whether a supervisor lives. Such a leak must be stopped by a request, and is not collected.
    pub fn is_alive(&self) -> bool {
        matches!(self.thing, Thing::Socket { .. } | Thing::Unreachable { .. })
    }
}

/// The result of a search of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Survey {
    /// The leaks: first members that could not be ended, then those of records.
    pub leaks: Vec<Leak>,
    /// The records of ended sandboxes, kept on purpose until they are old.
    #[serde(skip)]
    pub kept: Vec<Leak>,
    /// Whether everything that matters could be read. Only then remains without a record are known to be leaks.
    pub complete: bool,
    /// The objects that could not be read.
    pub unread: Vec<String>,
    /// The sandboxes whose records could not be read: each may be alive.
    #[serde(skip)]
    pub unjudged: Vec<String>,
}

/// Searches for leaks. `state_root` has the records, `temporary` the scratch directories.
///
/// If there is a leak that is not certain, searches twice more, within two seconds, and drops what was not there each time.
///
/// # Errors
/// When /proc cannot be read at all.
pub fn find_leaks(state_root: &Path, temporary: &[PathBuf]) -> io::Result<Survey> {
    repeated::find_repeated_leaks(
        || search::search_once(state_root, temporary),
        repeated::pause_between_searches,
    )
}

/// Returns the time since a file or directory last changed, in seconds.
fn age(path: &Path) -> u64 {
    let changed = std::fs::symlink_metadata(path).map_or(i64::MAX, |meta| meta.mtime().max(meta.ctime()));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    now.saturating_sub(u64::try_from(changed).unwrap_or(0))
}
