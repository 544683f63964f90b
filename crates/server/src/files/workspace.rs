//! The files below a [`Root`], with the rights of the sandbox's commands.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use penfold_control::Scope;
use penfold_state::Profile;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::error::FileError;
use super::rights::{Actor, Rights};
use super::root::{Border, Root, text_of};
use crate::records::find_sandbox;

/// The most links that a path leads through, as in the kernel.
const MOST_LINKS: u32 = 40;

/// The files of a sandbox: its workspace, or all that its jail sees.
#[derive(Debug)]
pub struct Workspace {
    root: Root,
    /// In a jail, the rights of its processes count.
    _rights: Rights,
}

/// A place for a file: an open directory, and a name in it without a slash.
#[derive(Debug)]
pub struct FilePlace {
    pub(crate) dir: OwnedFd,
    pub(crate) name: OsString,
    /// With whose rights the file is made.
    pub(crate) actor: Actor,
}

impl Workspace {
    /// Opens the workspace of a sandbox. Until the value is dropped, this thread has the rights of the sandbox's commands.
    ///
    /// # Errors
    /// When there is no such sandbox, or it has no workspace.
    pub fn open(scope: &Scope, word: &str) -> Result<Workspace, FileError> {
        let known = find_sandbox(scope, word)?;
        let path = known
            .intent
            .as_ref()
            .and_then(|intent| intent.workspace.as_ref())
            .ok_or_else(|| FileError::NoWorkspace { id: known.id.clone() })?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(dir) => {
                let is_jailed = known.intent.is_some_and(|intent| intent.profile == Some(Profile::Jail));
                let actor = if is_jailed { Actor::Jail } else { Actor::Server };
                Workspace::enter(&Root::new(dir, Border::Refuses, actor))
            }
            Err(errno) => Err(FileError::system("the workspace", errno)),
        }
    }

    /// Reaches the files below a directory. Until the value is dropped, this thread has the rights of the sandbox's commands.
    ///
    /// # Errors
    /// When the thread cannot have these rights.
    pub fn enter(root: &Root) -> Result<Workspace, FileError> {
        let rights = Rights::of(&root.actor);
        let rights = rights.map_err(|errno| FileError::system("the workspace", errno))?;
        Ok(Workspace { root: root.clone(), _rights: rights })
    }

    /// Opens a file or directory below the workspace. Links are followed as long as they stay below.
    ///
    /// # Errors
    /// Those of openat2(2); nothing outside is opened.
    pub fn at(&self, path: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd, FileError> {
        let checked = self.root.checked(path)?;
        self.root.open(&checked, flags, mode).map_err(|errno| FileError::system(path, errno))
    }

    /// Opens the directory of a file that may not exist. Its last part is not followed.
    ///
    /// # Errors
    /// When the directory cannot be opened, or the path names no file.
    pub fn place(&self, path: &str) -> Result<FilePlace, FileError> {
        self.place_of(&self.root.checked(path)?)
    }

    /// Like [`Workspace::place`], and follows links: the place of what a write to the path changes or makes.
    ///
    /// # Errors
    /// Also when there are too many links.
    pub fn place_behind_links(&self, path: &str) -> Result<FilePlace, FileError> {
        let mut path = self.root.checked(path)?;
        for _ in 0..MOST_LINKS {
            let place = self.place_of(&path)?;
            let Ok(target) = rustix::fs::readlinkat(&place.dir, &place.name, Vec::new()) else {
                return Ok(place);
            };
            let bytes = path.as_bytes();
            let above = bytes.iter().rposition(|&byte| byte == b'/').map_or(&b""[..], |at| &bytes[..=at]);
            let above = if target.as_bytes().starts_with(b"/") { &b""[..] } else { above };
            path = OsString::from_vec([above, target.as_bytes()].concat());
        }
        Err(FileError::system(&text_of(&path), Errno::LOOP))
    }

    fn place_of(&self, path: &OsStr) -> Result<FilePlace, FileError> {
        let mut path = path.as_bytes();
        while let Some(shorter) = path.strip_suffix(b"/") {
            path = shorter;
        }
        let slash = path.iter().rposition(|&byte| byte == b'/');
        let (parent, name) = slash.map_or((&b"."[..], path), |at| (&path[..at], &path[at + 1..]));
        if matches!(name, b"" | b"." | b"..") {
            return Err(FileError::Path("names no file in a directory"));
        }
        let parent = OsStr::from_bytes(if parent.is_empty() { b"/" } else { parent });
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let dir = self.root.open(parent, flags, Mode::empty());
        let dir = dir.map_err(|errno| FileError::system(&text_of(parent), errno))?;
        Ok(FilePlace { dir, name: OsString::from_vec(name.to_vec()), actor: self.root.actor.clone() })
    }

    /// Opens a plain file for reading, and returns its size.
    ///
    /// # Errors
    /// When the file cannot be read, or is no plain file.
    pub fn open_plain(&self, path: &str) -> Result<(File, u64), FileError> {
        // A look first: a socket cannot be opened, and to open a device or a FIFO has effects.
        let found = self.at(path, OFlags::PATH, Mode::empty())?;
        let stat = rustix::fs::fstat(&found).map_err(|errno| FileError::system(path, errno))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let found = format!("/proc/self/fd/{}", found.as_raw_fd());
                let file = rustix::fs::open(found, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
                let file = file.map_err(|errno| FileError::system(path, errno))?;
                Ok((file.into(), u64::try_from(stat.st_size).unwrap_or(0)))
            }
            FileType::Directory => Err(FileError::system(path, Errno::ISDIR)),
            _ => Err(FileError::NotPlain { path: path.to_owned() }),
        }
    }

    /// Opens the directory of a file that may not exist, and makes it before with those above it.
    ///
    /// # Errors
    /// Those of [`Workspace::place`]; directories that were made stay.
    pub fn place_with_parents(&self, path: &str) -> Result<FilePlace, FileError> {
        if let Some((directory, _)) = path.trim_end_matches('/').rsplit_once('/') {
            self.make_directories(directory, Mode::from_raw_mode(0o755))?;
        }
        self.place(path)
    }

    /// Makes the missing directories of a path. A race with another maker is no error.
    ///
    /// # Errors
    /// When one cannot be made; those above it stay.
    pub fn make_directories(&self, path: &str, mode: Mode) -> Result<(), FileError> {
        let path = self.root.checked(path)?;
        let mut reached = OsString::new();
        if path.as_bytes().starts_with(b"/") {
            reached.push("/");
        }
        let parts = path.as_bytes().split(|&byte| byte == b'/').map(OsStr::from_bytes);
        for part in parts.filter(|part| !part.is_empty() && *part != ".") {
            if !matches!(reached.as_bytes(), b"" | b"/") {
                reached.push("/");
            }
            reached.push(part);
            match self.root.open(&reached, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
                Ok(_) => continue,
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(FileError::system(&text_of(&reached), errno)),
            }
            let place = self.place_of(&reached)?;
            match rustix::fs::mkdirat(&place.dir, &place.name, mode) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(FileError::system(&text_of(&reached), errno)),
            }
        }
        Ok(())
    }
}

/// Refuses a place at which something is mounted. The kernel protects mounts only in the mount namespace of the caller; in that of the
/// sandbox they would silently go.
///
/// # Errors
/// `EBUSY` for such a place.
pub(crate) fn refuse_mount(place: &FilePlace) -> Result<(), Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match rustix::fs::statx(&place.dir, &place.name, flags, StatxFlags::empty()) {
        Ok(found) if found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) => Err(Errno::BUSY),
        _ => Ok(()),
    }
}

/// Tells whether a file is there, without following it.
pub(crate) fn is_there(place: &FilePlace) -> bool {
    rustix::fs::statat(&place.dir, &place.name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// Opens the directory for reading: a descriptor of `O_PATH` only names it.
pub(crate) fn open_readable(dir: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// A directory that the tests use as a workspace.
#[cfg(test)]
pub(crate) fn of_test(path: &std::path::Path) -> Workspace {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, Mode::empty()).unwrap();
    Workspace::enter(&Root::new(dir, Border::Refuses, Actor::Server)).unwrap()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::CWD;

    use super::*;

    fn read(workspace: &Workspace, path: &str) -> Result<OwnedFd, FileError> {
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
    fn only_plain_files_are_opened() {
        let top = tempfile::tempdir().unwrap();
        let workspace = of_test(top.path());
        let _socket = std::os::unix::net::UnixListener::bind(top.path().join("socket")).unwrap();
        let fifo = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, top.path().join("fifo"), FileType::Fifo, fifo, 0).unwrap();
        std::fs::create_dir(top.path().join("directory")).unwrap();
        std::fs::write(top.path().join("file"), "abc").unwrap();
        symlink("file", top.path().join("link")).unwrap();
        for path in ["socket", "fifo"] {
            assert!(matches!(workspace.open_plain(path), Err(FileError::NotPlain { .. })), "{path}");
        }
        for path in ["directory", ""] {
            let opened = workspace.open_plain(path);
            assert!(matches!(opened, Err(FileError::System { errno: Errno::ISDIR, .. })), "{path}");
        }
        for path in ["file", "link"] {
            let (file, size) = workspace.open_plain(path).unwrap();
            assert_eq!((std::io::read_to_string(file).unwrap().as_str(), size), ("abc", 3));
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
