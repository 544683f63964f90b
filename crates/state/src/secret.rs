//! A secret of a state root: random bytes that every server of the root reads, and nobody else can.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::record::open_private;

/// The number of bytes.
pub const SECRET: usize = 32;

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
    let stat = rustix::fs::fstat(&file)?;
    let is_private = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o7077 == 0;
    if !is_private {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("`{name}` is not this user's alone"),
        ));
    }
    let mut secret = [0_u8; SECRET];
    File::from(file).read_exact(&mut secret)?;
    Ok(secret)
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
}
