//! Directories with the mark of a sandbox.

use std::fs::ReadDir;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::{Trace, is_id};
use crate::directory::mark_at;

/// The most entries of a directory to look at.
const MOST: usize = 100_000;

/// Adds the directories with a mark that are in this place.
///
/// # Errors
/// When the place could not be read to its end.
pub(super) fn find_directories(place: &Path, found: &mut Vec<(String, Trace)>) -> io::Result<()> {
    use io::ErrorKind::{NotADirectory, NotFound};
    let entries: ReadDir = match std::fs::read_dir(place) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(()),
        Err(error) => return Err(error),
    };
    let user = rustix::process::geteuid().as_raw();
    for (number, entry) in entries.enumerate() {
        if number == MOST {
            return Err(io::Error::other(format!("it has more than {MOST} entries")));
        }
        let entry = entry?;
        // An entry that goes during the look is gone.
        if !entry.file_type().is_ok_and(|kind| kind.is_dir())
            || !entry.metadata().is_ok_and(|meta| meta.uid() == user)
        {
            continue;
        }
        let path = entry.path();
        if let Some((id, boot)) = owner_of(&path) {
            found.push((id, Trace::Directory { path, boot }));
        }
    }
    Ok(())
}

/// Returns the id and the boot in the mark of a directory, if it has one that can be read.
pub(super) fn owner_of(path: &Path) -> Option<(String, String)> {
    let text = String::from_utf8(mark_at(path)?).ok()?;
    let (id, boot) = text.split_once(' ')?;
    (is_id(id) && !boot.is_empty()).then(|| (id.to_owned(), boot.to_owned()))
}

#[cfg(test)]
mod tests {
    use rustix::fs::XattrFlags;

    use super::*;

    #[test]
    fn only_a_directory_with_a_mark_is_found() {
        let base = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        for (name, mark) in [("a", Some("3f9a1c2b7d04 boot")), ("b", Some("no id")), ("c", None)] {
            let path = base.path().join(name);
            std::fs::create_dir(&path).unwrap();
            if let Some(mark) = mark
                && let Err(errno) =
                    rustix::fs::setxattr(&path, "user.penfold", mark.as_bytes(), XattrFlags::CREATE)
            {
                // The file system takes no attributes.
                assert_eq!(errno, rustix::io::Errno::OPNOTSUPP);
                return;
            }
        }
        std::os::unix::fs::symlink(base.path().join("a"), base.path().join("link")).unwrap();
        let path = base.path().join("a");
        let expected = ("3f9a1c2b7d04".to_owned(), Trace::Directory { path, boot: "boot".to_owned() });
        let mut found = Vec::new();
        find_directories(base.path(), &mut found).unwrap();
        assert_eq!(found, [expected]);
        std::fs::write(base.path().join("file"), "").unwrap();
        for name in ["missing", "file"] {
            find_directories(&base.path().join(name), &mut found).unwrap();
        }
        assert_eq!(found.len(), 1);

        // What one place hides, the others show.
        let unreadable = base.path().join("n".repeat(300));
        let all = super::super::in_directories(&[unreadable.clone(), base.path().to_owned()]);
        assert_eq!((all.traces, all.unread.len()), (found, 1));
        assert_eq!(all.unread[0].0, unreadable);
    }
}
