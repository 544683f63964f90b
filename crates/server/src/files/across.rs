//! Moves a file or directory to another mount, where rename(2) does not reach: a copy, and the removal of the old one.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicU64, Ordering};

use penfold_state::clear::list_entries;
use penfold_state::time::now_ms;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::error::FileError;
use super::tree::remove_at;
use super::upload::DRAFT;
use super::workspace::{FilePlace, Workspace};

/// The deepest tree that is moved; each level takes two descriptors.
const DEEPEST: usize = 128;
/// The most bytes of the names of a file's attributes, and of one value.
const LONGEST_ATTRIBUTES: usize = 64 << 10;

impl Workspace {
    /// Moves a file or a directory to a path on another mount; another file at the new path is replaced. The new one appears whole, and
    /// then the old one is removed.
    ///
    /// # Errors
    /// When it cannot be copied; then nothing has changed. When the old one cannot be removed; then a part of it is there still.
    pub fn move_across(&self, from: &str, to: &str) -> Result<(), FileError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (old, new) = (self.place(from)?, self.place(to)?);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{DRAFT}move-{}-{number}", now_ms());
        let failed = |errno| FileError::system(to, errno);
        let draft = CString::new(name.as_str()).map_err(|_| failed(Errno::INVAL))?;
        let source = CString::new(old.name.as_bytes()).map_err(|_| failed(Errno::INVAL))?;
        let copied = Copier::default().copy((&old.dir, &source), (&new.dir, &draft), 0);
        let FilePlace { dir, name: target, actor } = new;
        let draft = FilePlace { dir, name: name.into(), actor };
        let moved =
            copied.and_then(|()| Ok(rustix::fs::renameat(&draft.dir, &draft.name, &draft.dir, &target)?));
        if let Err(error) = moved {
            let _ = remove_at(&draft, true);
            return Err(failed(errno_of(&error)));
        }
        remove_at(&old, true).map_err(|errno| FileError::system(from, errno))
    }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// A directory, and a name in it.
type At<'a> = (&'a OwnedFd, &'a CStr);

/// Copies a tree.
#[derive(Debug, Default)]
struct Copier {
    /// Device and inode of the copy, if it is a directory.
    top: Option<(u64, u64)>,
}

impl Copier {
    /// Copies a file, a link, or a directory with all that is in it.
    fn copy(&mut self, from: At<'_>, to: At<'_>, depth: usize) -> io::Result<()> {
        let stat = rustix::fs::statat(from.0, from.1, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => copy_file(from, to),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from.0, from.1, Vec::new())?;
                Ok(rustix::fs::symlinkat(target, to.0, to.1)?)
            }
            // A directory is not copied into itself.
            FileType::Directory if self.top == Some((stat.st_dev, stat.st_ino)) => Err(Errno::INVAL.into()),
            FileType::Directory if depth < DEEPEST => self.copy_directory(from, to, depth),
            FileType::Directory => Err(Errno::NAMETOOLONG.into()),
            // A FIFO, a socket or a device.
            _ => Err(Errno::INVAL.into()),
        }
    }

    fn copy_directory(&mut self, from: At<'_>, to: At<'_>, depth: usize) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let source = rustix::fs::openat(from.0, from.1, flags, Mode::empty())?;
        rustix::fs::mkdirat(to.0, to.1, Mode::RWXU)?;
        let copy = rustix::fs::openat(to.0, to.1, flags, Mode::empty())?;
        if self.top.is_none() {
            let stat = rustix::fs::fstat(&copy)?;
            self.top = Some((stat.st_dev, stat.st_ino));
        }
        for (name, _) in list_entries(source.as_fd())? {
            self.copy((&source, &name), (&copy, &name), depth + 1)?;
        }
        keep_properties(&source, &copy)
    }
}

fn copy_file(from: At<'_>, to: At<'_>) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mut source: File = rustix::fs::openat(from.0, from.1, flags, Mode::empty())?.into();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut copy: File = rustix::fs::openat(to.0, to.1, flags, Mode::RUSR | Mode::WUSR)?.into();
    io::copy(&mut source, &mut copy)?;
    keep_properties(&source, &copy)
}

/// Gives a copy the attributes, permissions and times of the original.
fn keep_properties(source: &impl AsFd, copy: &impl AsFd) -> io::Result<()> {
    let stat: Stat = rustix::fs::fstat(source)?;
    let mut names = vec![0; LONGEST_ATTRIBUTES];
    let length = rustix::fs::flistxattr(source, &mut names[..]).unwrap_or(0);
    let mut value = vec![0; LONGEST_ATTRIBUTES];
    for name in names.get(..length).unwrap_or_default().split(|&byte| byte == 0) {
        if name.starts_with(b"user.") {
            let name = OsStr::from_bytes(name);
            let length = rustix::fs::fgetxattr(source, name, &mut value[..])?;
            let value = value.get(..length).unwrap_or_default();
            rustix::fs::fsetxattr(copy, name, value, XattrFlags::empty())?;
        }
    }
    rustix::fs::fchmod(copy, Mode::from_raw_mode(stat.st_mode & 0o777))?;
    let time = |seconds, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanoseconds).unwrap_or(0),
    };
    let times = Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    };
    Ok(rustix::fs::futimens(copy, &times)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::super::workspace::of_test;

    #[test]
    fn a_tree_arrives_as_it_was() {
        let top = tempfile::tempdir().unwrap();
        let (old, new) = (top.path().join("old"), top.path().join("new"));
        fs::create_dir_all(old.join("sub/empty")).unwrap();
        fs::write(old.join("sub/file"), "text").unwrap();
        fs::set_permissions(old.join("sub/file"), fs::Permissions::from_mode(0o640)).unwrap();
        symlink("nowhere", old.join("link")).unwrap();
        let time = fs::metadata(old.join("sub/file")).unwrap().modified().unwrap();
        let workspace = of_test(top.path());
        workspace.move_across("old", "new").unwrap();
        assert!(!old.try_exists().unwrap());
        assert_eq!(fs::read_to_string(new.join("sub/file")).unwrap(), "text");
        let metadata = fs::metadata(new.join("sub/file")).unwrap();
        assert_eq!((metadata.permissions().mode() & 0o777, metadata.modified().unwrap()), (0o640, time));
        assert_eq!(fs::read_link(new.join("link")).unwrap().to_str(), Some("nowhere"));
        assert!(new.join("sub/empty").is_dir());
        fs::write(top.path().join("file"), "other").unwrap();
        workspace.move_across("new/sub/file", "file").unwrap();
        assert_eq!(fs::read_to_string(top.path().join("file")).unwrap(), "text");
    }

    #[test]
    fn a_directory_is_not_copied_into_itself() {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir_all(top.path().join("old/sub")).unwrap();
        let workspace = of_test(top.path());
        assert!(workspace.move_across("old", "old/sub/new").is_err());
        assert_eq!(fs::read_dir(top.path().join("old/sub")).unwrap().count(), 0);
    }

    #[test]
    fn nothing_is_left_of_a_copy_that_fails() {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir_all(top.path().join("old/sub")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(top.path().join("old/sub/socket")).unwrap();
        let workspace = of_test(top.path());
        assert!(workspace.move_across("old", "new").is_err());
        let left: Vec<_> =
            fs::read_dir(top.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["old"]);
    }
}
