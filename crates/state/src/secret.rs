//! Secrets of a state root, which every server of the root reads, and nobody else can: random bytes, and files.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::record::open_private;

/// The number of bytes.
pub const SECRET: usize = 32;
/// The longest file.
const LONGEST: u64 = 1 << 20;

/// Reads the secret of this name below a state root, and makes it before if there is none. Of two processes that make it at one
/// time, both get the same.
///
/// # Errors
/// When the root cannot be used, or the file is not this user's alone.
pub fn read_or_make_secret(root: &Path, name: &str) -> io::Result<[u8; SECRET]> {
    let dir = open_private(CWD, root).map_err(io::Error::other)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(&dir, name, flags, Mode::empty());
    let file = match open() {
        Err(Errno::NOENT) => {
            let mut secret = [0_u8; SECRET];
            if getrandom(&mut secret, GetRandomFlags::empty())? != SECRET {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
            let mut draft = File::from(rustix::fs::openat(&dir, ".", flags, Mode::RUSR | Mode::WUSR)?);
            draft.write_all(&secret)?;
            draft.sync_all()?;
            let path = format!("/proc/self/fd/{}", draft.as_raw_fd());
            match rustix::fs::linkat(CWD, path, &dir, name, AtFlags::SYMLINK_FOLLOW) {
                Ok(()) | Err(Errno::EXIST) => open()?,
                Err(errno) => return Err(errno.into()),
            }
        }
        opened => opened?,
    };
    check_private(&file, name)?;
    let mut secret = [0_u8; SECRET];
    File::from(file).read_exact(&mut secret)?;
    Ok(secret)
}

/// Reads the secret file of this name below a state root; `None` if there is none.
///
/// # Errors
/// When it cannot be read, is not this user's alone, or is too long.
pub fn read_private(root: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(root.join(name), flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    check_private(&file, name)?;
    let mut bytes = Vec::new();
    let length = File::from(file).take(LONGEST + 1).read_to_end(&mut bytes)?;
    if u64::try_from(length).is_ok_and(|length| length > LONGEST) {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(Some(bytes))
}

/// Writes the secret file of this name below a state root. The old content or the new is there at every moment. One thread of a process
/// does so at one time.
///
/// # Errors
/// When it cannot be written; then it is as it was.
pub fn write_private(root: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let dir = open_private(CWD, root).map_err(io::Error::other)?;
    let draft = format!("{name}.{}", rustix::process::getpid().as_raw_pid());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&dir, draft.as_str(), flags, Mode::RUSR | Mode::WUSR)?;
    let written = (|| {
        check_private(&file, &draft)?;
        let mut file = File::from(file);
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(rustix::fs::renameat(&dir, draft.as_str(), &dir, name)?)
    })();
    if written.is_err() {
        let _ = rustix::fs::unlinkat(&dir, draft.as_str(), AtFlags::empty());
    }
    written
}

fn check_private(file: impl AsFd, name: &str) -> io::Result<()> {
    let stat = rustix::fs::fstat(file)?;
    if stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o7077 == 0 {
        return Ok(());
    }
    let sentence = format!("`{name}` is not this user's alone");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, sentence))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_secret_is_made_once_and_kept_private() {
        let root = tempfile::tempdir().unwrap();
        let all: Vec<_> = std::thread::scope(|scope| {
            let read = || read_or_make_secret(root.path(), "secret").unwrap();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(read)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all.iter().all(|secret| *secret == all[0]) && all[0] != [0; SECRET]);
        let path = root.path().join("secret");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(read_or_make_secret(root.path(), "secret").is_err());
    }

    #[test]
    fn a_file_is_replaced_whole_and_kept_private() {
        let root = tempfile::tempdir().unwrap();
        let read = || read_private(root.path(), "file");
        assert_eq!(read().unwrap(), None);
        for text in ["longer", "short"] {
            write_private(root.path(), "file", text.as_bytes()).unwrap();
            assert_eq!(read().unwrap(), Some(text.as_bytes().to_vec()));
        }
        assert_eq!(root.path().read_dir().unwrap().count(), 1);
        let path = root.path().join("file");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o604)).unwrap();
        assert!(read().is_err());
    }
}
