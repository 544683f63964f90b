//! A directory that lives as long as its sandbox.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use penfold_teardown::Resource;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use crate::confinement::{Identity, USER_SCRATCH};
use crate::leaf_name::LeafName;
use crate::lock;

/// What is asked for: a scratch directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScratchSpec {
    /// The directory in which it is made.
    pub base: PathBuf,
    /// Whether all users may make files in it, as in `/tmp`; otherwise it is private to this user.
    pub is_shared: bool,
    /// The names of directories that are made in it, for the same users.
    pub directories: Vec<OsString>,
    /// The user of a directory [`USER_SCRATCH`] in it, which nobody else can enter.
    pub user: Option<Identity>,
}

impl ScratchSpec {
    /// Asks for a private directory.
    pub fn below(base: PathBuf) -> ScratchSpec {
        ScratchSpec { base, is_shared: false, directories: Vec::new(), user: None }
    }

    /// Returns the path for the scratch directory of this sandbox.
    pub fn path_for(&self, id: &str) -> PathBuf {
        self.base.join(LeafName::of(id))
    }
}

/// The scratch directory of one sandbox, held open: a command cannot save it from removal by a rename.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    dir: OwnedFd,
}

impl Scratch {
    /// Makes the directory, private to this user, and locks it.
    ///
    /// The lock is held while this value, or the copy of it in a forked process, lives. By the lock, a sandbox without
    /// a record differs from a leak.
    ///
    /// # Errors
    /// Those of mkdir(2); an existing directory is an error.
    pub fn create(path: PathBuf) -> io::Result<Scratch> {
        rustix::fs::mkdir(&path, Mode::RWXU)?;
        let locked = open(&path).map_err(io::Error::from).and_then(|dir| lock::hold_new(&dir).map(|()| dir));
        match locked {
            Ok(dir) => Ok(Scratch { path, dir }),
            Err(error) => {
                let _ = rustix::fs::rmdir(&path);
                Err(error)
            }
        }
    }

    /// Makes what is asked for besides the directory itself.
    ///
    /// # Errors
    /// Those of mkdir(2), chown(2) and chmod(2).
    pub fn furnish(&self, spec: &ScratchSpec) -> io::Result<()> {
        let shared = Mode::from_raw_mode(0o1777);
        for name in &spec.directories {
            rustix::fs::mkdirat(&self.dir, name, Mode::RWXU)?;
            if spec.is_shared {
                // Nobody else can enter the directory above so far.
                rustix::fs::chmodat(&self.dir, name, shared, AtFlags::empty())?;
            }
        }
        if let Some(Identity { uid, gid, .. }) = &spec.user {
            rustix::fs::mkdirat(&self.dir, USER_SCRATCH, Mode::RWXU)?;
            let (user, group) = (Uid::from_raw(*uid), Gid::from_raw(*gid));
            rustix::fs::chownat(&self.dir, USER_SCRATCH, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
            // Others may go through it, and see nothing.
            rustix::fs::fchmod(&self.dir, Mode::from_raw_mode(0o711))?;
        }
        if spec.is_shared {
            rustix::fs::fchmod(&self.dir, shared)?;
        }
        Ok(())
    }

    /// Opens the directory that an intent names; `None` if it is gone, is no directory or belongs to another user.
    ///
    /// # Errors
    /// When that cannot be determined.
    pub fn existing(path: PathBuf) -> io::Result<Option<Scratch>> {
        let dir = match open(&path) {
            Ok(dir) => dir,
            // The path is missing, a link or a file, or the directory is another user's.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let owner = rustix::fs::fstat(&dir)?.st_uid;
        Ok((owner == rustix::process::geteuid().as_raw()).then_some(Scratch { path, dir }))
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

impl Resource for Scratch {
    fn describe(&self) -> String {
        format!("directory {}", self.path.display())
    }

    fn release(&mut self, _forced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if rustix::fs::fstat(&self.dir)?.st_nlink == 0 {
            // A link or a file that a command has put in its place is removed, and not followed.
            let _ = rustix::fs::unlinkat(CWD, &self.path, AtFlags::empty());
            return Ok(());
        }
        Ok(penfold_resource::remove_directory(&self.path, self.dir.as_fd(), Instant::now())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clear::open_below;

    fn made() -> (tempfile::TempDir, Scratch) {
        let base = tempfile::tempdir().unwrap();
        let scratch = Scratch::create(base.path().join("scratch")).unwrap();
        (base, scratch)
    }

    #[test]
    fn a_tree_deeper_than_the_descriptors_that_may_be_open_is_removed() {
        let (base, mut scratch) = made();
        let mut dir = scratch.dir.try_clone().unwrap();
        for _ in 0..2000 {
            rustix::fs::mkdirat(&dir, c"d", Mode::RWXU).unwrap();
            dir = open_below(dir.as_fd(), &c"d".to_owned()).unwrap();
        }
        scratch.release(true).unwrap();
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 0);
    }

    /// spec: 1.6
    #[test]
    fn links_are_removed_and_what_they_point_at_stays() {
        let (base, mut scratch) = made();
        let precious = base.path().join("precious");
        std::fs::create_dir(&precious).unwrap();
        std::fs::write(precious.join("file"), "x").unwrap();
        std::os::unix::fs::symlink(&precious, scratch.path().join("link")).unwrap();
        scratch.release(true).unwrap();
        assert!(!scratch.path().try_exists().unwrap());
        assert_eq!(std::fs::read(precious.join("file")).unwrap(), b"x");
    }

    /// spec: 1.6
    #[test]
    fn a_renamed_directory_goes_as_well() {
        let (base, mut scratch) = made();
        std::fs::write(scratch.path().join("file"), "x").unwrap();
        std::fs::rename(scratch.path(), base.path().join("elsewhere")).unwrap();
        scratch.release(true).unwrap();
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 0);
    }

    #[test]
    fn releasing_twice_is_fine() {
        let (_base, mut scratch) = made();
        scratch.release(true).unwrap();
        scratch.release(true).unwrap();
    }
}
