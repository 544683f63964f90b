//! The jobs whose prolog ran on this node: `<root>/slurm/JOB.json`. They tell what a job has started from what only names a job in its environment.

use std::collections::HashMap;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use penfold_process::{ProcFs, Stat};
use serde::{Deserialize, Serialize};

use super::JobId;

/// The jobs of a state root.
#[derive(Debug, Clone)]
pub struct Jobs {
    dir: PathBuf,
}

/// A job, as its prolog saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Begun {
    /// The user of the job.
    user: u32,
    /// The boot of the node.
    boot_id: String,
    /// The start of the prolog, in clock ticks since the boot.
    start: u64,
}

impl Begun {
    /// Tells whether the job may have started a process of this user.
    pub(super) fn may_have_started(&self, stat: &Stat, user: u32) -> bool {
        self.user == user && self.start <= stat.start.0
    }
}

impl Jobs {
    /// The jobs below a state root.
    pub fn below(root: &Path) -> Jobs {
        Jobs { dir: root.join("slurm") }
    }

    /// Writes that a job of this user begins now.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn begin(&self, proc: &mut ProcFs, job: JobId, user: u32) -> io::Result<()> {
        let own = proc.stat(rustix::process::getpid())?.ok_or(io::ErrorKind::NotFound)?;
        let begun = Begun { user, boot_id: penfold_process::boot_id()?, start: own.start.0 };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let file = self.file(job);
        let new = file.with_extension(format!("new-{}", std::process::id()));
        let written = std::fs::write(&new, serde_json::to_vec(&begun)?);
        let written = written.and_then(|()| std::fs::rename(&new, file));
        if written.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        written
    }

    /// Removes the file of a job of which nothing is left.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn end(&self, job: JobId) -> io::Result<()> {
        match std::fs::remove_file(self.file(job)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Reads the jobs that began since the boot and of which something may be left.
    pub(super) fn all(&self) -> io::Result<HashMap<JobId, Begun>> {
        let boot_id = penfold_process::boot_id()?;
        let entries = match std::fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(HashMap::new()),
            entries => entries?,
        };
        let mut all = HashMap::new();
        for entry in entries {
            let name = entry?.file_name();
            let job = name.to_str().and_then(|name| name.strip_suffix(".json")?.parse().ok());
            let text = job.and_then(|job| Some((job, std::fs::read(self.file(job)).ok()?)));
            let begun = text.and_then(|(job, text)| Some((job, serde_json::from_slice(&text).ok()?)));
            all.extend(begun.filter(|(_, begun): &(JobId, Begun)| begun.boot_id == boot_id));
        }
        Ok(all)
    }

    fn file(&self, job: JobId) -> PathBuf {
        self.dir.join(format!("{job}.json"))
    }
}
