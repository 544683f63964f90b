//! Finds the state root of remains that have no record here.

use std::path::{Path, PathBuf};

use penfold_process::Pid;
use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use fingerprints::RecordHome;
use penfold_control::Resolver;
use penfold_state::LeafLabel;
use penfold_state::evidence::{EvidenceSubject, elsewhere, fingerprints};

/// Whether remains without a record belong to this state root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// They may be ended without a request.
    Ours,
    /// They live, and another state root may keep them: a person decides.
    Doubtful,
    /// They belong to another state root.
    Elsewhere,
}

/// Finds the state root of remains by sockets, labels and ancestors.
#[derive(Debug)]
pub(super) struct Homes(Resolver);

impl Homes {
    pub(super) fn new(root: &Path) -> Homes {
        Homes(Resolver::new(root))
    }

    /// Returns the leaf of this user that is named after a sandbox.
    pub(super) fn leaf(&self, id: &str) -> Option<PathBuf> {
        self.0.fingerprints().leaves().get(id).cloned()
    }

    /// Tells whether a sandbox has a supervisor in another mount namespace.
    pub(super) fn is_elsewhere(&self, id: &str) -> bool {
        let leaf = self.leaf(id);
        let leaf = leaf.as_deref();
        let subject = EvidenceSubject { id, leaf, has_record: false, has_unwritten_survivors: false };
        !elsewhere::supervisors_elsewhere(self.0.fingerprints(), &subject).is_empty()
    }

    /// Returns the state root of a sandbox's leaf and of the carriers of its marker.
    pub(super) fn claim(&self, id: &str, leaf: Option<&Path>, marked: &[Pid]) -> Claim {
        let mut label = leaf.map(|leaf| LeafLabel::read(leaf, id)).unwrap_or_default();
        label.root =
            label.root.filter(|root| fingerprints::is_same_root(root, self.0.root()) || may_hold(root, id));
        match self.0.home(id, leaf, &label, marked) {
            RecordHome::Elsewhere => Claim::Elsewhere,
            RecordHome::Unknown if is_doubtful(leaf, marked) => Claim::Doubtful,
            RecordHome::Here | RecordHome::Unknown => Claim::Ours,
        }
    }
}

/// Tells whether remains of an unknown state root live and may be meant to live.
fn is_doubtful(leaf: Option<&Path>, marked: &[Pid]) -> bool {
    // Only detached sandboxes are meant to go on, and each labels its leaf before it has members.
    !leaf.is_some_and(LeafLabel::is_missing) && (!marked.is_empty() || leaf.is_some_and(is_populated))
}

/// Tells whether a state root may have a record of a sandbox. If the record was lost there, the sandbox can still be
/// ended by name.
fn may_hold(root: &Path, id: &str) -> bool {
    let record = root.join("sandboxes").join(id);
    let found = rustix::fs::statat(CWD, &record, AtFlags::SYMLINK_NOFOLLOW);
    !matches!(found, Err(Errno::NOENT | Errno::NOTDIR))
}

fn is_populated(leaf: &Path) -> bool {
    fingerprints::leaf_members(leaf).is_some_and(|(populated, _)| populated)
}
