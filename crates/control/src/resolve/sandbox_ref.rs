//! A sandbox as it was found.

use std::path::PathBuf;

use crate::scope::tenant_of_record;
use penfold_state::Files;
use penfold_state::evidence::EvidenceSubject;
use penfold_state::intent::{INTENT, Intent};
use rustix::fs::AtFlags;
use rustix::io::Errno;

/// A sandbox that was found, by its record or by its traces.
#[derive(Debug, Clone)]
pub struct SandboxRef {
    /// The short id.
    pub id: String,
    /// The name, if known, as whoever looks for the sandbox has to say it.
    pub name: Option<String>,
    /// The record; `None` when it is gone or cannot be opened.
    pub record: Option<Files>,
    /// The leaf, if known; it may be gone.
    pub leaf: Option<PathBuf>,
    /// Whether the sandbox is known to belong to this state root. Otherwise it is listed, and ended only when a user
    /// names it.
    pub claimed: bool,
    /// The intent, from the record or else from the leaf.
    pub intent: Option<Intent>,
    /// The damage of the record, a sentence for each fault.
    pub damage: Vec<String>,
    /// Whether a failure of its command has it restarted: it is the newest life, and was started with `--restart`.
    pub restarts: bool,
    /// Whether the record had no intent, or a part of it, when it was read: its holder was about to write it, or had removed it.
    pub(crate) lacks_intent: bool,
}

impl SandboxRef {
    /// Returns the tenant to whom the sandbox belongs, as far as its record tells.
    pub(crate) fn tenant(&self) -> Option<String> {
        match &self.intent {
            Some(intent) => intent.tenant().map(str::to_owned),
            None => self.record.as_ref().and_then(tenant_of_record),
        }
    }

    /// Returns the name that the sandbox holds below its state root, if it is known.
    pub fn held_name(&self) -> Option<String> {
        self.intent.as_ref().map_or_else(|| self.name.clone(), Intent::held_name)
    }

    /// Returns the generation of the leaf: different values mean different sandboxes, whatever their names.
    pub fn generation(&self) -> Option<u64> {
        let leaf = self.leaf.as_ref()?;
        rustix::fs::lstat(leaf).ok().map(|stat| stat.st_ino)
    }

    /// Tells whether the record is still being made, or is already being removed.
    ///
    /// Missing files prove nothing then: look again a moment later.
    pub fn is_passing(&self) -> bool {
        self.is_being_made() || self.is_being_put_away()
    }

    /// Returns the sandbox as a subject for [`Evidence`](penfold_state::evidence::Evidence).
    pub(crate) fn subject(&self) -> EvidenceSubject<'_> {
        let record = self.record.as_ref();
        EvidenceSubject {
            id: &self.id,
            leaf: self.leaf.as_deref(),
            has_record: record.is_some(),
            has_unwritten_survivors: record.is_some_and(Files::has_unwritten_survivors),
        }
    }

    /// Tells whether the sandbox has a record that cannot be opened.
    pub(crate) fn is_closed(&self) -> bool {
        self.record.is_none() && !self.damage.is_empty()
    }

    /// Tells whether this state may last only for a moment, while the first or last files were made or removed.
    pub(crate) fn is_fleeting(&self) -> bool {
        (self.record.is_none() && self.damage.is_empty()) || self.lacks_intent || self.is_being_put_away()
    }

    /// Tells whether a command has begun to remove the record since its intent was read.
    ///
    /// The intent is removed first: files read since then may be incomplete.
    pub(crate) fn is_being_put_away(&self) -> bool {
        let gone = |files: &Files| {
            rustix::fs::statat(files.dir(), INTENT, AtFlags::SYMLINK_NOFOLLOW).err() == Some(Errno::NOENT)
        };
        self.damage.is_empty() && self.record.as_ref().is_some_and(gone)
    }

    /// Tells whether this is a detached sandbox whose supervisor has not written its state yet.
    pub(crate) fn is_being_made(&self) -> bool {
        let silent =
            |files: &Files| matches!(files.state(), Ok(None)) && !files.has_ended() && files.lock().is_held();
        self.intent.as_ref().is_some_and(|intent| intent.detached.is_some())
            && self.record.as_ref().is_some_and(silent)
    }
}
