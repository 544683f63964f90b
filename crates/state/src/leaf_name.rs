//! The name of a sandbox's leaf, and of its scratch directory.

use std::ffi::OsStr;
use std::path::Path;

use penfold_cgroup::limits::LEAF_PREFIX as PREFIX;

use crate::id::Id;

/// `penfold-<id>`: shows the sandbox of a cgroup or directory that no record names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafName(String);

impl LeafName {
    /// Returns the name for a short id, see [`Id::short`].
    pub fn of(id: &str) -> LeafName {
        LeafName(format!("{PREFIX}{id}"))
    }

    /// Returns the name as one component of a path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Tells whether this path ends in the name.
    pub fn ends(&self, path: &Path) -> bool {
        path.file_name() == Some(OsStr::new(&self.0))
    }

    /// Returns the id in one component of a path, if the component has this form.
    pub fn id_in(component: &str) -> Option<&str> {
        component.strip_prefix(PREFIX).filter(|id| Id::is_short(id))
    }

    /// Returns the id in the last component of a path, if the component has this form.
    pub fn id_at(path: &Path) -> Option<String> {
        LeafName::id_in(path.file_name()?.to_str()?).map(str::to_owned)
    }
}

impl AsRef<Path> for LeafName {
    fn as_ref(&self) -> &Path {
        Path::new(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_made_and_no_other_is() {
        let id = Id::new().unwrap().short();
        let name = LeafName::of(&id);
        let path = Path::new("/sys/fs/cgroup").join(&name);
        assert_eq!(LeafName::id_in(name.as_str()), Some(id.as_str()));
        assert_eq!(LeafName::id_at(&path).as_ref(), Some(&id));
        assert!(name.ends(&path) && !name.ends(Path::new("/sys/fs/cgroup")));
        for other in ["", "penfold", "penfold-", "penfold-exec-1", "penfold-0123456789AB", "0123456789ab"] {
            assert_eq!(LeafName::id_in(other), None, "{other:?}");
        }
        assert_eq!(LeafName::id_at(Path::new("/")), None);
    }
}
