//! A file system on which every writer hangs.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::tool::{NoTestkit, binary};

/// Why there is no frozen file system.
#[derive(Debug, thiserror::Error)]
pub enum FrozenFsError {
    /// The testkit program is missing.
    #[error(transparent)]
    NoTestkit(#[from] NoTestkit),
    /// The host refuses; nothing is left of it.
    #[error("cannot freeze a file system: {0}")]
    Refused(String),
    /// A process or file could not be handled.
    #[error("cannot handle the keeper of the file system")]
    Io(#[from] io::Error),
}

/// A small ext4 image, mounted and frozen: who writes to its `file` hangs in state D.
///
/// A process of the testkit binary keeps it and thaws it when this value or this process ends, however it does.
/// A tree whose members hang there can be ended after [`FrozenFs::thaw`] only; make it before the tree, so that it
/// would be dropped after it.
#[derive(Debug)]
pub struct FrozenFs {
    directory: PathBuf,
    keeper: Child,
    stdin: Option<ChildStdin>,
}

impl FrozenFs {
    /// Sets it up; for root, with `mkfs.ext4`, `mount` and `fsfreeze`.
    ///
    /// # Errors
    /// When the host refuses; nothing is left then.
    pub fn new() -> Result<FrozenFs, FrozenFsError> {
        let testkit = binary()?;
        let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
        let directory = std::env::temp_dir().join(format!("testkit-frozen-{}", uuid.trim()));
        fs::create_dir(&directory)?;
        let mut command = Command::new(testkit);
        command.arg("frozen-fs").arg(&directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut keeper = command.spawn().inspect_err(|_| drop(fs::remove_dir(&directory)))?;
        let stdin = keeper.stdin.take();
        let mut word = String::new();
        if let Some(out) = keeper.stdout.take() {
            BufReader::new(out).read_line(&mut word)?;
        }
        if word.trim() == "frozen" {
            return Ok(FrozenFs { directory, keeper, stdin });
        }
        let mut said = String::new();
        if let Some(mut error) = keeper.stderr.take() {
            error.read_to_string(&mut said)?;
        }
        keeper.wait()?;
        drop(fs::remove_dir(&directory));
        Err(FrozenFsError::Refused(said.trim().to_owned()))
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.directory.join("mnt")
    }

    /// The directory of image and mount point.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Thaws it and takes it away. Who hung goes on, and ends if it has been killed meanwhile.
    ///
    /// # Errors
    /// When the keeper could not do it.
    pub fn thaw(mut self) -> Result<(), FrozenFsError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), FrozenFsError> {
        if self.stdin.take().is_none() {
            return Ok(());
        }
        let status = self.keeper.wait()?;
        drop(fs::remove_dir(&self.directory));
        if status.success() {
            Ok(())
        } else {
            Err(FrozenFsError::Refused(format!("the keeper ended with {status}")))
        }
    }
}

impl Drop for FrozenFs {
    fn drop(&mut self) {
        drop(self.finish());
    }
}
