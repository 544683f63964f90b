//! The state of one sandbox: its specification, its record on disk, its resources, and its recovery.
//!
//! - [`Spec`] — the sandbox that a caller requests.
//! - [`Id`] — the id of a sandbox, never used twice.
//! - [`record`] — the record on disk: made first, removed last.
//! - [`ScopeDir`] — the cgroup of a scope that a service manager made for a sandbox.
//! - [`Scratch`], [`ScratchSpec`] — a directory that lives as long as its sandbox.
//! - [`counters`] — the counters of a state root, for monitoring.
//! - [`history`] — the reports of the last foreground sandboxes that failed or left something.
//! - [`events`] — the events of detached sandboxes.
//! - [`recovery`] — ends the remains of a sandbox without a supervisor.
//!
//! Invariant: a record whose lock is held belongs to a living supervisor; no other process acts on the record.

mod cause_words;
mod change_watch;
pub mod claims;
mod confinement;
pub mod counters;
mod descriptors;
mod error_chain;
mod event_log;
pub mod events;
pub mod evidence;
pub mod execs;
pub mod exit_codes;
mod files;
mod fnv;
pub mod history;
mod id;
pub mod intent;
mod json;
pub mod launch;
mod leaf_label;
mod leaf_name;
mod life;
pub mod lives;
pub mod lock;
pub mod log;
pub mod marked;
mod name_text;
pub mod names;
mod nested;
mod notes;
mod openness;
pub mod outcome;
pub mod outside;
pub mod record;
pub mod recovery;
mod requester;
mod scope_dir;
mod scratch;
pub mod secret;
mod spare_plan;
pub mod spared;
mod spec;
pub mod state;
mod survivor_memory;
pub mod survivors;
mod sweep_turn;
pub mod time;
pub mod wire;

pub use penfold_cgroup::limits::{self, Limits};

pub use cause_words::{cause_clause, cause_word};
pub use confinement::{Identity, Ipc, JAIL_PROGRAM, Jail, Profile, USER_SCRATCH};
pub use descriptors::lacks_descriptors;
pub use error_chain::{error_chain, sentence_chain};
pub use event_log::EventLog;
pub use evidence::LockState;
pub use execs::{ExecFiles, RecordedExec};
pub use files::{EndNote, Files};
pub use fnv::fnv_hash;
pub use id::Id;
pub use intent::{DetachedIntent, Intent};
pub use launch::{KeptRequest, Launch, LaunchSource};
pub use leaf_label::LeafLabel;
pub use leaf_name::LeafName;
pub use life::{Life, OnFailure};
pub use nested::{EnclosingNotes, NestedNotes, NestedRecord};
pub use openness::is_open_to_others;
pub use outcome::{
    DescribedProcess, ExitStatus, FormerParent, LeakedObject, OmittedCounts, Outcome, Report, StartFailure,
    Totals,
};
pub use penfold_resource::clear;
pub use record::{Record, Registry, StateError};
pub use requester::Requester;
pub use scope_dir::{REMOVAL_LIMIT, RemainingScope, SUPERVISORS, ScopeDir};
pub use scratch::{Scratch, ScratchSpec};
pub use spare_plan::SparePlan;
pub use spec::{
    Contain, Detach, ExecSpec, OwnerExit, ReadyPipe, RecordSettings, ReportFile, Spec, StdinClose, TtlAction,
};
pub use survivor_memory::{forget_survivors, mark_unkillable, note_survivors, remember_survivors};
