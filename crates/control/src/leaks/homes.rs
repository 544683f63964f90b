//! Below which state root things without a record here belong.

use std::path::{Path, PathBuf};

use penfold_process::Pid;
use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use crate::resolve::Finder;
use fingerprints::Home;
use penfold_state::LeafLabel;
use penfold_state::evidence::fingerprints;

/// Whose a thing without a record here is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// It may be ended unasked.
    Ours,
    /// It lives, and may be what another state root keeps: a person decides.
    Doubtful,
    /// Another state root's.
    Elsewhere,
}

/// Tells whose things are by the sockets, labels and ancestors that speak of them.
#[derive(Debug)]
pub(super) struct Homes(Finder);

impl Homes {
    pub(super) fn new(root: &Path) -> Homes {
        Homes(Finder::new(root))
    }

    /// The leaf of this user that is called after a sandbox.
    pub(super) fn leaf(&self, id: &str) -> Option<PathBuf> {
        self.0.fingerprints().leaves().get(id).cloned()
    }

    /// Whose the leaf of a sandbox and the carriers of its marker are.
    pub(super) fn claim(&self, id: &str, leaf: Option<&Path>, marked: &[Pid]) -> Claim {
        let mut label = leaf.map(|leaf| LeafLabel::read(leaf, id)).unwrap_or_default();
        label.root =
            label.root.filter(|root| fingerprints::is_same_root(root, self.0.root()) || may_hold(root, id));
        match self.0.home(id, leaf, &label, marked) {
            Home::Elsewhere => Claim::Elsewhere,
            Home::Unknown if is_doubtful(leaf, marked) => Claim::Doubtful,
            Home::Here | Home::Unknown => Claim::Ours,
        }
    }
}

/// Whether what nothing tells the home of lives and may be meant to.
fn is_doubtful(leaf: Option<&Path>, marked: &[Pid]) -> bool {
    // Only detached sandboxes are meant to go on, and each labels its leaf before it has members.
    !leaf.is_some_and(LeafLabel::is_missing) && (!marked.is_empty() || leaf.is_some_and(is_populated))
}

/// Whether a state root is not known to have no record of a sandbox: who lost it there can still be ended by name.
fn may_hold(root: &Path, id: &str) -> bool {
    let record = root.join("sandboxes").join(id);
    let found = rustix::fs::statat(CWD, &record, AtFlags::SYMLINK_NOFOLLOW);
    !matches!(found, Err(Errno::NOENT | Errno::NOTDIR))
}

fn is_populated(leaf: &Path) -> bool {
    fingerprints::members(leaf).is_some_and(|(populated, _)| populated)
}
