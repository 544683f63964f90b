//! The executable file of a process, and its command line as words.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use rustix::fs::AtFlags;
use rustix::io::Errno;
use rustix::process::Pid;

use crate::path::ProcPath;
use crate::procfs::{FileId, ProcFs};

/// What the kernel appends to the path of a file that was deleted or replaced.
const DELETED: &[u8] = b" (deleted)";
/// The longest path that readlink(2) returns here.
const PATH_BYTES: usize = 4096;

/// The executable file of a process, as `/proc/<pid>/exe` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executable {
    /// The path from which the process was started; another file may have it by now.
    pub path: PathBuf,
    /// The file itself, also if it was deleted.
    pub file: FileId,
    /// Whether the file has no name any more, as after an upgrade.
    pub is_deleted: bool,
}

impl ProcFs {
    /// Returns the executable file of a process.
    ///
    /// # Errors
    /// `EACCES` for a process that hides itself from this user, as `ssh-agent` does; `ENOENT` or `ESRCH` when it is gone.
    /// `EAGAIN` when the process executes another program meanwhile.
    pub fn executable(&mut self, pid: Pid) -> Result<Executable, Errno> {
        let path = ProcPath::of(pid, "exe");
        let dir = self.dir()?;
        let before = rustix::fs::statat(dir, path.as_c_str(), AtFlags::empty())?;
        let mut buffer = vec![0_u8; PATH_BYTES];
        let length = rustix::fs::readlinkat_raw(dir, path.as_c_str(), buffer.as_mut_slice())?;
        let after = rustix::fs::statat(dir, path.as_c_str(), AtFlags::empty())?;
        if (before.st_dev, before.st_ino) != (after.st_dev, after.st_ino) {
            return Err(Errno::AGAIN);
        }
        buffer.truncate(length);
        let is_deleted = after.st_nlink == 0;
        let bytes = buffer.strip_suffix(DELETED).filter(|_| is_deleted).unwrap_or(&buffer);
        let file = FileId { device: after.st_dev, inode: after.st_ino };
        Ok(Executable { path: OsStr::from_bytes(bytes).into(), file, is_deleted })
    }

    /// Returns the words of a command line; none when the process is gone, or has none.
    ///
    /// A process can change its own command line.
    pub fn words(&mut self, pid: Pid) -> Vec<Vec<u8>> {
        let Ok(text) = self.read(ProcPath::of(pid, "cmdline").as_c_str()) else { return Vec::new() };
        let text = text.strip_suffix(b"\0").unwrap_or(text);
        if text.is_empty() {
            return Vec::new();
        }
        text.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_executable_and_words_are_read() {
        let mut proc = ProcFs::open().unwrap();
        let own = rustix::process::getpid();
        let executable = proc.executable(own).unwrap();
        assert_eq!(executable.path, std::env::current_exe().unwrap());
        assert!(!executable.is_deleted);
        assert_eq!(Some(executable.file), proc.program(own));
        let words: Vec<Vec<u8>> = std::env::args_os().map(|word| word.as_encoded_bytes().to_vec()).collect();
        assert_eq!(proc.words(own), words);
    }

    #[test]
    fn deleted_executable_keeps_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("copy (deleted)");
        std::fs::copy("/bin/sleep", &path).unwrap();
        let mut child = std::process::Command::new(&path).arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let mut proc = ProcFs::open().unwrap();
        let before = proc.executable(pid);
        std::fs::remove_file(&path).unwrap();
        let after = proc.executable(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        let (before, after) = (before.unwrap(), after.unwrap());
        assert_eq!((&before.path, before.is_deleted), (&path, false));
        assert_eq!((&after.path, after.is_deleted, after.file), (&path, true, before.file));
    }
}
