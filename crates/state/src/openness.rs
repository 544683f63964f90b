//! Whether other users can get at a file.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The bits of others: what they can read or write of a file.
const READ_OR_WRITE: u32 = 0o006;
/// The bit of others: whether they can pass a directory.
const PASS: u32 = 0o001;

/// Tells whether users who are neither the owner nor in the group can read or change a file, by the modes of the file and of
/// the directories above it.
///
/// # Errors
/// When the file cannot be looked at.
pub fn is_open_to_others(path: &Path) -> io::Result<bool> {
    let whole = std::path::absolute(path)?;
    let mode = |path: &Path| std::fs::metadata(path).map(|file| file.mode());
    if mode(&whole)? & READ_OR_WRITE == 0 {
        return Ok(false);
    }
    for above in whole.ancestors().skip(1) {
        if mode(above)? & PASS == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs::{DirBuilder, Permissions, set_permissions};
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};

    use super::*;

    #[test]
    fn a_file_is_open_if_all_directories_above_it_are() {
        let dir = tempfile::tempdir().unwrap();
        let (inner, file) = (dir.path().join("inner"), dir.path().join("inner/file"));
        DirBuilder::new().mode(0o755).create(&inner).unwrap();
        std::fs::write(&file, "").unwrap();
        let set = |path: &Path, mode| set_permissions(path, Permissions::from_mode(mode)).unwrap();
        set(dir.path(), 0o711);
        let open = |mode| {
            set(&file, mode);
            is_open_to_others(&file).unwrap()
        };
        assert_eq!([0o600, 0o640, 0o644, 0o602].map(open), [false, false, true, true]);
        set(&inner, 0o750);
        assert!(!open(0o666));
        assert_eq!(is_open_to_others(&inner.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
