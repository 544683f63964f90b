//! A file system on which every writer hangs.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::tool::{NoTestkit, binary};

/// The reason why there is no frozen file system.
#[derive(Debug, thiserror::Error)]
pub enum FrozenFsError {
    /// The testkit program is missing.
    #[error(transparent)]
    NoTestkit(#[from] NoTestkit),
    /// The host refuses; nothing of the attempt is left.
    #[error("cannot freeze a file system: {0}")]
    Refused(String),
    /// An operation on a process or file failed.
    #[error("cannot handle the process that holds the file system")]
    Io(#[from] io::Error),
}

/// A small ext4 image, mounted and frozen: a process that writes to its `file` hangs in state D.
///
/// A process of the testkit binary holds the file system. It thaws the file system when this value is dropped or this
/// process ends, in any way. A tree with members that hang there can only be ended after [`FrozenFs::thaw`]. Create
/// this value before the tree, so that it is dropped after the tree.
#[derive(Debug)]
pub struct FrozenFs {
    directory: PathBuf,
    holder: Child,
    stdin: Option<ChildStdin>,
}

impl FrozenFs {
    /// Sets the file system up; for root, with `mkfs.ext4`, `mount` and `fsfreeze`.
    ///
    /// # Errors
    /// When the host refuses; then nothing is left.
    pub fn new() -> Result<FrozenFs, FrozenFsError> {
        let testkit = binary()?;
        let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
        let directory = std::env::temp_dir().join(format!("testkit-frozen-{}", uuid.trim()));
        fs::create_dir(&directory)?;
        let mut command = Command::new(testkit);
        command.arg("frozen-fs").arg(&directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut holder = command.spawn().inspect_err(|_| drop(fs::remove_dir(&directory)))?;
        let stdin = holder.stdin.take();
        let mut word = String::new();
        if let Some(out) = holder.stdout.take() {
            BufReader::new(out).read_line(&mut word)?;
        }
        if word.trim() == "frozen" {
            return Ok(FrozenFs { directory, holder, stdin });
        }
        let mut said = String::new();
        if let Some(mut error) = holder.stderr.take() {
            error.read_to_string(&mut said)?;
        }
        holder.wait()?;
        drop(fs::remove_dir(&directory));
        Err(FrozenFsError::Refused(said.trim().to_owned()))
    }

    /// Returns the mount point.
    pub fn path(&self) -> PathBuf {
        self.directory.join("mnt")
    }

    /// Returns the directory of image and mount point.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Thaws and removes the file system. A hanging writer continues, or ends if it has been killed meanwhile.
    ///
    /// # Errors
    /// When the holding process failed.
    pub fn thaw(mut self) -> Result<(), FrozenFsError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), FrozenFsError> {
        if self.stdin.take().is_none() {
            return Ok(());
        }
        let status = self.holder.wait()?;
        drop(fs::remove_dir(&self.directory));
        if status.success() {
            Ok(())
        } else {
            Err(FrozenFsError::Refused(format!("the holder ended with {status}")))
        }
    }
}

impl Drop for FrozenFs {
    fn drop(&mut self) {
        drop(self.finish());
    }
}
