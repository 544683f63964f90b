//! A process that belongs to no tree.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::mounts;
use crate::tool::{NoTestkit, binary};
use crate::tree::Tree;

/// The reason why there is no bystander.
#[derive(Debug, thiserror::Error)]
pub enum BystanderError {
    /// The testkit program is missing.
    #[error(transparent)]
    NoTestkit(#[from] NoTestkit),
    /// The process could not be started.
    #[error("cannot start a bystander")]
    Spawn(#[source] io::Error),
}

/// A process that looks like a hostile one and belongs to no tree. The process ends when this value is dropped, or when
/// this process ends.
#[derive(Debug)]
pub struct Bystander {
    child: Child,
}

impl Bystander {
    /// Starts a bystander in this process's group and cgroup, the parent of any cgroup that the tool makes.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn spawn() -> Result<Bystander, BystanderError> {
        Bystander::start(None, None)
    }

    /// Starts a bystander as this user, in the process group and the cgroup in which the tree's tool was started.
    ///
    /// # Errors
    /// When the process cannot be started, or the group is gone.
    pub fn beside(tree: &Tree, user: Option<u32>) -> Result<Bystander, BystanderError> {
        let owner = tree.owner().map(|owner| owner.pid);
        let bystander = Bystander::start(owner, user)?;
        if let Some(cgroup) = owner.and_then(mounts::cgroup_of)
            && mounts::own_cgroup().as_ref() != Some(&cgroup)
        {
            // An unreaped child: no other process can have the pid.
            std::fs::write(cgroup.join("cgroup.procs"), bystander.pid().to_string())
                .map_err(BystanderError::Spawn)?;
        }
        Ok(bystander)
    }

    fn start(group: Option<i32>, user: Option<u32>) -> Result<Bystander, BystanderError> {
        let mut command = Command::new(binary()?);
        command.args(["hostile", "bystander", "--ready", "/nonexistent/ready"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(group) = group {
            command.process_group(group);
        }
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        Ok(Bystander { child: command.spawn().map_err(BystanderError::Spawn)? })
    }

    /// Returns the pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells whether the process lives.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Panics unless the process lives.
    ///
    /// # Panics
    /// When another process has ended the bystander.
    pub fn assert_alive(&mut self) {
        let status = self.child.try_wait();
        assert!(matches!(status, Ok(None)), "a bystander was hit: {status:?}");
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
