//! What a test has left: the sandboxes whose records are below its directory, and the processes that use the directory.
//!
//! Nothing here ends anything. A directory that would be swept by mistake is refused: see [`TestHome::open`].

mod evidence;
mod links;
mod refused;
mod state_roots;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use penfold_process::{Completeness, Stat};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::time::ClockId;

pub use evidence::Evidence;
pub use state_roots::StateRoots;

/// Why a directory is not swept.
#[derive(Debug, thiserror::Error)]
pub enum TestHomeError {
    /// A sweep of this path would surely be a mistake.
    #[error("`{}` is {reason}", path.display())]
    Refused {
        /// The path.
        path: PathBuf,
        /// What the path is.
        reason: &'static str,
    },
    /// Another directory has taken the place of this one.
    #[error("`{}` is another directory than at the start of the sweep", path.display())]
    Replaced {
        /// The path.
        path: PathBuf,
    },
    /// The directory cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// The obstacle.
        #[source]
        source: io::Error,
    },
}

/// A directory with the homes of tests. It may be missing: then only processes are found that still use what was in it.
#[derive(Debug)]
pub struct TestHome {
    /// The absolute path as it was given; the path without links.
    names: [PathBuf; 2],
    directory: Option<Directory>,
}

/// The directory, held open.
#[derive(Debug)]
struct Directory {
    fd: OwnedFd,
    device: u64,
    inode: u64,
    owner: u32,
    /// The time from boot until the directory was made, where the file system keeps that time.
    made: Option<Duration>,
}

/// The result of one look at all processes.
#[derive(Debug)]
#[must_use = "a look that was not complete proves nothing"]
pub struct Look {
    /// The processes that use the directory, and the evidence.
    pub found: Vec<(Stat, Evidence)>,
    /// Those among them that are never ended: this process and its ancestors.
    pub ancestors: Vec<Stat>,
    /// Processes that use the directory, but belong to living sandboxes whose records are elsewhere.
    pub elsewhere: Vec<Stat>,
    /// Whether all processes could be read.
    pub completeness: Completeness,
}

impl TestHome {
    /// Opens a directory. `user_home` is the home directory of this user.
    ///
    /// # Errors
    /// When the path is a symbolic link, no directory, the directory of a user or of the system, or a mount point with
    /// files of other users; when it cannot be read.
    pub fn open(path: &Path, user_home: Option<&Path>) -> Result<TestHome, TestHomeError> {
        let refused = |reason| TestHomeError::Refused { path: path.to_owned(), reason };
        let unread = |source| TestHomeError::Read { path: path.to_owned(), source };
        if path.as_os_str().is_empty() {
            return Err(refused("no path"));
        }
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(refused("a path with `..`"));
        }
        // Without a slash at the end, which would follow a link.
        let given: PathBuf = std::path::absolute(path).map_err(unread)?.components().collect();
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::open(&given, flags, Mode::empty()) {
            Ok(fd) => Some(fd),
            Err(Errno::NOENT | Errno::NOTDIR) => None,
            Err(errno) => return Err(unread(errno.into())),
        };
        let Some(fd) = fd else {
            let real = real_of_missing(&given);
            return match refused::by_path(&real) {
                Some(reason) => Err(refused(reason)),
                None => Ok(TestHome { names: [given, real], directory: None }),
            };
        };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| unread(errno.into()))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {}
            FileType::Symlink => return Err(refused("a symbolic link")),
            _ => return Err(refused("no directory")),
        }
        let real = path_of(&fd).map_err(unread)?;
        let reason = refused::by_path(&real)
            .or_else(|| refused::user_home(&stat, user_home))
            .or_else(|| refused::shared_mount(&real));
        if let Some(reason) = reason {
            return Err(refused(reason));
        }
        let made = made(&fd);
        let directory = Directory { fd, device: stat.st_dev, inode: stat.st_ino, owner: stat.st_uid, made };
        Ok(TestHome { names: [given, real], directory: Some(directory) })
    }

    /// Returns the path without links.
    pub fn path(&self) -> &Path {
        let [_, real] = &self.names;
        real
    }

    /// Fails if another directory has taken the place of this one. It may be gone.
    ///
    /// # Errors
    /// When the path leads to another directory.
    pub fn verify(&self) -> Result<(), TestHomeError> {
        let is_same = match (&self.directory, rustix::fs::lstat(self.path())) {
            (Some(directory), Ok(stat)) => (directory.device, directory.inode) == (stat.st_dev, stat.st_ino),
            (None, Ok(_)) => false,
            (_, Err(_)) => true,
        };
        if is_same { Ok(()) } else { Err(TestHomeError::Replaced { path: self.path().to_owned() }) }
    }

    /// Finds the state roots below the directory.
    ///
    /// # Errors
    /// When the directory itself cannot be read.
    pub fn state_roots(&self) -> Result<StateRoots, TestHomeError> {
        let Some(directory) = &self.directory else { return Ok(StateRoots::default()) };
        let roots = state_roots::find_state_roots(&directory.fd, self.path());
        roots.map_err(|source| TestHomeError::Read { path: self.path().to_owned(), source })
    }

    /// Looks for processes that use the directory. `ids` are the sandboxes with a record below the directory.
    ///
    /// # Errors
    /// When /proc cannot be read at all.
    pub fn look(&self, ids: &BTreeSet<String>) -> io::Result<Look> {
        evidence::look_at_processes(self, ids)
    }
}

/// Returns the path without links of a path whose last parts may be missing.
fn real_of_missing(path: &Path) -> PathBuf {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |parent: &Path| rustix::fs::open(parent, flags, Mode::empty()).ok();
    let found = path.ancestors().skip(1).find_map(|parent| Some((parent, path_of(&open(parent)?).ok()?)));
    match found.and_then(|(parent, real)| Some(real.join(path.strip_prefix(parent).ok()?))) {
        Some(real) => real,
        None => path.to_owned(),
    }
}

fn path_of(fd: &OwnedFd) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Returns the time from boot until a directory was made; `None` where the file system does not keep that time.
fn made(fd: &OwnedFd) -> Option<Duration> {
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    if !StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME) {
        return None;
    }
    let birth = Duration::new(u64::try_from(stat.stx_btime.tv_sec).ok()?, stat.stx_btime.tv_nsec);
    let now = |clock| {
        let now = rustix::time::clock_gettime(clock);
        Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
    };
    // A directory that is older than the boot is older than every process.
    let age = now(ClockId::Realtime).saturating_sub(birth);
    Some(now(ClockId::Boottime).saturating_sub(age))
}

/// Tells whether a path leads to this directory.
fn leads_to(directory: &Directory, path: &Path) -> bool {
    rustix::fs::statat(CWD, path, AtFlags::empty())
        .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (directory.device, directory.inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 3.5.1
    #[test]
    fn another_directory_in_its_place_is_noticed() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("home");
        let make = || std::fs::create_dir(&path).unwrap();
        make();
        let home = TestHome::open(&path, None).unwrap();
        home.verify().unwrap();
        std::fs::rename(&path, base.path().join("old")).unwrap();
        // It is gone.
        home.verify().unwrap();
        make();
        assert!(matches!(home.verify(), Err(TestHomeError::Replaced { .. })));
        std::fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink(base.path().join("old"), &path).unwrap();
        assert!(matches!(home.verify(), Err(TestHomeError::Replaced { .. })));
        assert!(matches!(TestHome::open(&path, None), Err(TestHomeError::Refused { .. })));
    }

    /// spec: 3.5.1
    #[test]
    fn a_link_above_is_followed_and_one_to_a_shared_directory_is_refused() {
        let base = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(base.path().join("real/home")).unwrap();
        std::os::unix::fs::symlink("real", base.path().join("link")).unwrap();
        let home = TestHome::open(&base.path().join("link/home"), None).unwrap();
        assert!(home.path().ends_with("real/home"));
        std::os::unix::fs::symlink("/", base.path().join("root")).unwrap();
        for path in ["root/tmp", "root/tmp/", "root/home/nobody-has-this"] {
            let refused = TestHome::open(&base.path().join(path), None);
            assert!(matches!(refused, Err(TestHomeError::Refused { .. })), "{path}");
        }
    }
}
