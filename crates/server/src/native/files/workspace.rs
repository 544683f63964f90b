//! The workspace as an open directory, below which all paths are resolved.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use penfold_control::Resolver;
use penfold_state::Profile;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::rights::WithoutCapabilities;
use crate::native::problem::{Kind, Problem};

/// The longest path.
const LONGEST: usize = 4096;
/// A rename elsewhere on the host can make openat2(2) fail with EAGAIN; it is repeated at most this often.
const TRIES: u32 = 64;

/// The workspace of a sandbox.
#[derive(Debug)]
pub(super) struct Workspace {
    dir: OwnedFd,
    is_jailed: bool,
    /// In a jail, the rights of its processes count.
    _rights: WithoutCapabilities,
}

/// A place for a file: an open directory, and a name in it without a slash.
#[derive(Debug)]
pub(super) struct FilePlace {
    pub(super) dir: OwnedFd,
    pub(super) name: String,
    /// Whether the workspace is that of a jail.
    pub(super) is_jailed: bool,
}

impl Workspace {
    /// Opens the workspace of a sandbox. Until the value is dropped, this thread has the rights of the sandbox's commands.
    pub(super) fn open(root: &Path, word: &str) -> Result<Workspace, Problem> {
        let known = Resolver::new(root).resolve(word)?;
        let path = known.intent.as_ref().and_then(|intent| intent.workspace.as_ref()).ok_or_else(|| {
            let sentence = format!("sandbox {} is not detached, or its record names no workspace", known.id);
            Problem::new(Kind::NotFound, sentence)
        })?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(dir) => {
                let is_jailed = known.intent.is_some_and(|intent| intent.profile == Some(Profile::Jail));
                let rights = WithoutCapabilities::of(is_jailed);
                let rights = rights.map_err(|errno| problem("the workspace", errno))?;
                Ok(Workspace { dir, is_jailed, _rights: rights })
            }
            Err(errno) => Err(problem("the workspace", errno)),
        }
    }

    /// Opens a file or directory below the workspace. Links are followed as long as they stay below.
    pub(super) fn at(&self, path: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd, Problem> {
        open_below(&self.dir, checked(path)?, flags, mode).map_err(|errno| problem(path, errno))
    }

    /// Opens the directory of a file that may not exist. Its last part is not followed.
    pub(super) fn place(&self, path: &str) -> Result<FilePlace, Problem> {
        let path = checked(path)?.trim_end_matches('/');
        let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
        if matches!(name, "" | "." | "..") {
            return Err(Problem::field("path", "names no file in the workspace"));
        }
        let parent = if parent.is_empty() { "." } else { parent };
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let dir =
            open_below(&self.dir, parent, flags, Mode::empty()).map_err(|errno| problem(parent, errno))?;
        Ok(FilePlace { dir, name: name.to_owned(), is_jailed: self.is_jailed })
    }

    /// Makes the missing directories of a path. A race with another maker is no error.
    pub(super) fn make_directories(&self, path: &str, mode: Mode) -> Result<(), Problem> {
        let path = checked(path)?;
        let mut reached = String::new();
        for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
            if !reached.is_empty() {
                reached.push('/');
            }
            reached.push_str(part);
            match open_below(&self.dir, &reached, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
                Ok(_) => continue,
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(problem(&reached, errno)),
            }
            let place = self.place(&reached)?;
            match rustix::fs::mkdirat(&place.dir, &place.name, mode) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(problem(&reached, errno)),
            }
        }
        Ok(())
    }
}

/// Opens a path below a directory.
fn open_below(dir: &OwnedFd, path: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut tries = 0;
    loop {
        tries += 1;
        match rustix::fs::openat2(dir.as_fd(), path, flags | OFlags::CLOEXEC, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) if tries < TRIES => {}
            opened => return opened,
        }
    }
}

/// Checks a path from a request. The empty path and `.` are the workspace.
fn checked(path: &str) -> Result<&str, Problem> {
    if path.len() > LONGEST {
        return Err(Problem::field("path", "longer than 4096 bytes"));
    }
    if path.contains('\0') {
        return Err(Problem::field("path", "contains a NUL"));
    }
    if path.starts_with('/') {
        return Err(Problem::field("path", "begins with `/`; paths are relative to the workspace"));
    }
    Ok(if path.is_empty() { "." } else { path })
}

/// The problem of a system call about a path.
pub(super) fn problem(path: &str, errno: Errno) -> Problem {
    let kind = match errno {
        Errno::NOENT => Kind::NotFound,
        Errno::XDEV => Kind::OutsideWorkspace,
        // A magic link, or too many links.
        Errno::LOOP | Errno::NAMETOOLONG | Errno::INVAL => Kind::InvalidField,
        Errno::NOTDIR | Errno::ISDIR | Errno::EXIST | Errno::NOTEMPTY | Errno::BUSY | Errno::TXTBSY => {
            Kind::FileConflict
        }
        Errno::ACCESS | Errno::PERM | Errno::ROFS => Kind::NotPermitted,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Kind::NoSpace,
        _ => Kind::Internal,
    };
    Problem::new(kind, format!("`{path}`: {}", std::io::Error::from(errno)))
}

/// The word for a type of file.
pub(super) fn type_word(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "link",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        FileType::Unknown => "unknown",
    }
}

/// Tells whether a file is there, without following it.
pub(super) fn is_there(place: &FilePlace) -> bool {
    rustix::fs::statat(&place.dir, &place.name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// Opens the directory for reading: a descriptor of `O_PATH` only names it.
pub(super) fn readable(dir: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// A directory that the tests use as a workspace.
#[cfg(test)]
pub(super) fn of_test(path: &Path) -> Workspace {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, Mode::empty()).unwrap();
    Workspace { dir, is_jailed: false, _rights: WithoutCapabilities::of(false).unwrap() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::CWD;

    use super::*;

    fn read(workspace: &Workspace, path: &str) -> Result<OwnedFd, Problem> {
        workspace.at(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())
    }

    #[test]
    fn no_path_leads_out() {
        let top = tempfile::tempdir().unwrap();
        let inside = top.path().join("inside");
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(top.path().join("secret"), "x").unwrap();
        std::fs::write(inside.join("own"), "x").unwrap();
        symlink("../secret", inside.join("relative")).unwrap();
        symlink(top.path().join("secret"), inside.join("absolute")).unwrap();
        symlink("..", inside.join("up")).unwrap();
        symlink("own", inside.join("fine")).unwrap();
        symlink("/proc/self/root", inside.join("magic")).unwrap();
        let workspace = of_test(&inside);
        for path in [
            "../secret",
            "up/secret",
            "relative",
            "absolute",
            "/etc/passwd",
            "a/../../secret",
            "magic/etc/passwd",
        ] {
            assert!(read(&workspace, path).is_err(), "{path}");
        }
        for path in ["own", "fine", "./own", "", "."] {
            assert!(read(&workspace, path).is_ok(), "{path}");
        }
        for path in ["..", "up/x", "../x", "", ".", "own/..", "a\0b"] {
            assert!(workspace.place(path).is_err(), "{path}");
        }
    }

    #[test]
    fn a_directory_that_is_swapped_for_a_link_leads_nowhere() {
        let top = tempfile::tempdir().unwrap();
        let inside = top.path().join("inside");
        let outside = top.path().join("outside");
        std::fs::create_dir_all(inside.join("dir")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("secret"), "x").unwrap();
        symlink(&outside, inside.join("link")).unwrap();
        let workspace = of_test(&inside);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                while !done.load(Ordering::Relaxed) {
                    let _ =
                        rustix::fs::renameat_with(CWD, inside.join("dir"), CWD, inside.join("link"), flags);
                }
            });
            for _ in 0..5000 {
                assert!(read(&workspace, "dir/secret").is_err());
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
