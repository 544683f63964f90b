//! Finds the state roots below a directory, without following links or leaving the file system.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use penfold_state::Id;
use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// The directories of a state root that name its sandboxes: their records, and their members that could not be ended.
const NAMING: [&str; 2] = ["sandboxes", "survivors"];
/// Each level holds a descriptor.
const DEEPEST: usize = 64;

/// The state roots below a directory.
#[derive(Debug, Default)]
pub struct StateRoots {
    /// The paths of those with a record, or with a member that could not be ended.
    pub found: Vec<PathBuf>,
    /// The ids of their sandboxes.
    pub ids: Vec<String>,
    /// Directories that could not be read, so that there may be more, with the obstacle.
    pub unread: Vec<(PathBuf, io::Error)>,
}

/// Finds all state roots that have a record, or a member that could not be ended.
///
/// # Errors
/// When the directory itself cannot be read.
pub(super) fn find_state_roots(directory: &OwnedFd, path: &Path) -> io::Result<StateRoots> {
    let mut roots = StateRoots::default();
    let device = rustix::fs::fstat(directory)?.st_dev;
    let top = open(directory, c".").map_err(io::Error::from)?;
    visit(&top, path, device, &mut roots, DEEPEST)?;
    Ok(roots)
}

fn open(directory: impl AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty())
}

fn visit(
    directory: &OwnedFd,
    path: &Path,
    device: u64,
    roots: &mut StateRoots,
    deeper: usize,
) -> io::Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "."
            || name == ".."
            || !matches!(entry.file_type(), FileType::Directory | FileType::Unknown)
        {
            continue;
        }
        let below = path.join(name);
        let opened = match open(directory, entry.file_name()) {
            Ok(opened) => opened,
            // It is gone, or no directory.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(errno) => {
                roots.unread.push((below, errno.into()));
                continue;
            }
        };
        if rustix::fs::fstat(&opened)?.st_dev != device {
            continue;
        }
        if NAMING.iter().any(|naming| name == *naming) {
            let ids = ids_in(&opened)?;
            if !ids.is_empty() {
                if !roots.found.iter().any(|root| root == path) {
                    roots.found.push(path.to_owned());
                }
                roots.ids.extend(ids);
                continue;
            }
        }
        let visited = match deeper.checked_sub(1) {
            Some(deeper) => visit(&opened, &below, device, roots, deeper),
            None => Err(io::Error::other("it is too deep")),
        };
        if let Err(error) = visited {
            roots.unread.push((below, error));
        }
    }
    Ok(())
}

fn ids_in(directory: &OwnedFd) -> io::Result<Vec<String>> {
    let mut ids = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        ids.extend(entry.file_name().to_str().ok().filter(|name| Id::is_short(name)).map(str::to_owned));
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 3.6
    #[test]
    fn roots_are_found_at_any_depth_and_links_are_not_followed() {
        let base = tempfile::tempdir().unwrap();
        let make = |path: &str| std::fs::create_dir_all(base.path().join(path)).unwrap();
        make("home/one/deep/state/sandboxes/0123456789ab");
        make("home/sandboxes/ba9876543210/nested-0123456789ab");
        make("home/two/sandboxes/no-id");
        make("home/three/survivors/cccccccccccc");
        make("outside/sandboxes/aaaaaaaaaaaa");
        std::os::unix::fs::symlink(base.path().join("outside"), base.path().join("home/link")).unwrap();
        let home = base.path().join("home");
        let roots = find_state_roots(&open(rustix::fs::CWD, &home).unwrap(), &home).unwrap();
        let mut found = roots.found;
        found.sort_unstable();
        assert_eq!(found, [home.clone(), home.join("one/deep/state"), home.join("three")]);
        assert_eq!(roots.ids.len(), 3, "{:?}", roots.ids);
        assert!(roots.unread.is_empty());
    }
}
