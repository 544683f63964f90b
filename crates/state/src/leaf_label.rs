//! The extended attribute of a leaf that identifies its detached sandbox if the record is lost.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::intent::Intent;

const ATTRIBUTE: &str = "user.penfold";
/// The kernel's limit for the value of an attribute, xattr(7).
const LONGEST: usize = 64 * 1024;

/// The label of a leaf: the intent and the state root of its sandbox, if present.
#[derive(Debug, Default)]
pub struct LeafLabel {
    /// The intent.
    pub intent: Option<Intent>,
    /// The state root that has the sandbox's record.
    pub root: Option<PathBuf>,
}

impl LeafLabel {
    /// Writes the label of an open leaf. A kernel without such attributes loses no guarantee.
    pub fn write(leaf: impl AsFd, intent: &Intent) {
        if let Ok(text) = serde_json::to_vec(intent) {
            let _ = rustix::fs::fsetxattr(leaf, ATTRIBUTE, &text, XattrFlags::empty());
        }
    }

    /// Reads the label of a leaf; an empty label when it is missing or belongs to another sandbox.
    pub fn read(leaf: &Path, id: &str) -> LeafLabel {
        let mut text = vec![0_u8; LONGEST];
        let Ok(length) = rustix::fs::lgetxattr(leaf, ATTRIBUTE, &mut text) else {
            return LeafLabel::default();
        };
        let text = text.get(..length).unwrap_or_default();
        let value: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
        let root = value.pointer("/detached/root").and_then(|root| root.as_str()).map(PathBuf::from);
        let intent = serde_json::from_slice::<Intent>(text).ok().filter(|intent| intent.id.short() == id);
        LeafLabel { root: root.filter(|_| intent.is_some()), intent }
    }

    /// Returns whether a leaf could have a label and has none. False on a kernel without such attributes.
    pub fn is_missing(leaf: &Path) -> bool {
        rustix::fs::lgetxattr(leaf, ATTRIBUTE, &mut [0_u8; 0]) == Err(Errno::NODATA)
    }
}
