//! The cgroup of the scope that a service manager made for a sandbox.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penfold_cgroup::{Leaf, Membership};
use penfold_teardown::Resource;
use rustix::event::Timespec;
use rustix::io::Errno;

use crate::leaf_name::LeafName;

/// The cgroup in which the supervisors are, beside the sandbox's leaf. A cgroup with processes in it could enable no controllers
/// for the leaf.
pub const SUPERVISORS: &str = "supervisor";

/// The time that the manager may take to remove the cgroup of an empty scope.
pub const REMOVAL_LIMIT: Duration = Duration::from_secs(2);
/// The time after which penfold removes the cgroup itself: the manager may have ended before the scope.
const MANAGERS_TIME: Duration = Duration::from_millis(500);
/// The interval of the looks: the removal of a cgroup causes no event that works everywhere.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// The cgroup of a scope. The manager removes it once the last process has left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeDir {
    path: PathBuf,
}

/// The cgroup of a scope is still there.
#[derive(Debug, thiserror::Error)]
pub enum RemainingScope {
    /// It has members.
    #[error("there are processes in it")]
    Populated,
    /// It is empty, but was not removed.
    #[error("it is empty, but neither its manager nor penfold could remove it")]
    Empty,
}

impl ScopeDir {
    /// Returns the name of a sandbox's scope, by its short id and the number of its life. The starter of a further life is still in
    /// the scope of the former one.
    pub fn unit(id: &str, life: u32) -> String {
        let name = LeafName::of(id);
        if life > 1 { format!("{}-{life}.scope", name.as_str()) } else { format!("{}.scope", name.as_str()) }
    }

    /// Returns the sandbox that a unit is the scope of, by its short id.
    fn id_in(name: &str) -> Option<&str> {
        let name = name.strip_suffix(".scope")?;
        let without_life = || {
            let (name, life) = name.rsplit_once('-')?;
            let is_number = !life.is_empty() && life.bytes().all(|byte| byte.is_ascii_digit());
            LeafName::id_in(name).filter(|_| is_number)
        };
        LeafName::id_in(name).or_else(without_life)
    }

    /// Tells whether a unit is the scope of a sandbox.
    pub fn is_unit(name: &str) -> bool {
        ScopeDir::id_in(name).is_some()
    }

    /// Takes the path from a record. `None` if it is not the scope of this sandbox.
    pub fn of(path: &Path, id: &str) -> Option<ScopeDir> {
        let name = path.file_name().and_then(|last| last.to_str());
        let is_named = name.and_then(ScopeDir::id_in) == Some(id);
        (is_named && path.is_absolute()).then(|| ScopeDir { path: path.to_owned() })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells whether the cgroup is removed.
    pub fn is_gone(&self) -> bool {
        matches!(rustix::fs::lstat(&self.path), Err(Errno::NOENT | Errno::NODEV | Errno::NOTDIR))
    }

    /// Waits until the cgroup is removed.
    ///
    /// # Errors
    /// When the cgroup is still there at the deadline.
    pub fn wait_gone(&self, until: Instant) -> Result<(), RemainingScope> {
        let managers = Instant::now() + MANAGERS_TIME;
        while !self.is_gone() {
            let now = Instant::now();
            if now >= managers
                && let Ok(Some(scope)) = Leaf::open(&self.path)
            {
                // The kernel refuses this while there are members.
                let _ = scope.remove();
            }
            if now >= until && !self.is_gone() {
                let populated =
                    Leaf::open(&self.path).ok().flatten().and_then(|scope| scope.populated().ok());
                return Err(if populated == Some(false) {
                    RemainingScope::Empty
                } else {
                    RemainingScope::Populated
                });
            }
            let _ = rustix::event::poll(&mut [], Some(&LOOK));
        }
        Ok(())
    }

    /// Kills what is in the scope, unless this process is.
    fn kill(&self) {
        let Ok(Some(scope)) = Leaf::open(&self.path) else { return };
        let own = std::fs::read("/proc/self/cgroup").unwrap_or_default();
        let is_inside = Membership::of(&own).is_in(scope.cgroup());
        if !is_inside && scope.populated().unwrap_or(true) {
            // A failure shows when the cgroup stays.
            let _ = scope.kill();
        }
    }
}

impl Resource for ScopeDir {
    fn describe(&self) -> String {
        format!("scope {}", self.path.display())
    }

    /// For a sandbox without supervisors: kills what is left in the scope, and waits for its removal.
    fn release(&mut self, _forced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.kill();
        Ok(self.wait_gone(Instant::now() + REMOVAL_LIMIT)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_scope_of_this_sandbox_is_taken_from_a_record() {
        let (id, unit) = ("3f9a1c2b7d04", "penfold-3f9a1c2b7d04.scope");
        assert_eq!(ScopeDir::unit(id, 1), unit);
        for unit in [unit, ScopeDir::unit(id, 12).as_str()] {
            let path = Path::new("/sys/fs/cgroup/app.slice").join(unit);
            assert_eq!(ScopeDir::of(&path, id).unwrap().path(), path);
            assert!(ScopeDir::is_unit(unit));
        }
        for other in [
            "/sys/fs/cgroup",
            "/",
            unit,
            "/penfold-3f9a1c2b7d05.scope",
            "/penfold-3f9a1c2b7d04",
            "/penfold-3f9a1c2b7d04-.scope",
            "/penfold-3f9a1c2b7d04-x.scope",
        ] {
            assert_eq!(ScopeDir::of(Path::new(other), id), None, "{other}");
        }
        assert!(ScopeDir::of(Path::new("/nonexistent/x/penfold-3f9a1c2b7d04.scope"), id).unwrap().is_gone());
    }
}
