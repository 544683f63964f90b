//! How a tree is started and dropped.

use std::time::Duration;

/// How a tree is started and dropped; [`Tree::spawn_with`](crate::Tree::spawn_with) takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    pub(crate) cgroup: bool,
    pub(crate) kill_on_drop: bool,
    pub(crate) patience: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { cgroup: true, kill_on_drop: true, patience: Duration::from_secs(10) }
    }
}

impl Options {
    /// Returns the defaults: in a cgroup where one can be had, ended when dropped, 10 s of patience.
    pub fn new() -> Options {
        Options::default()
    }

    /// Tells whether the tree gets a cgroup where one can be had. Without, this process becomes a subreaper.
    #[must_use]
    pub fn cgroup(self, cgroup: bool) -> Options {
        Options { cgroup, ..self }
    }

    /// Tells whether the tree is killed when its value is dropped.
    #[must_use]
    pub fn kill_on_drop(self, kill_on_drop: bool) -> Options {
        Options { kill_on_drop, ..self }
    }

    /// Sets the time after SIGKILL until members that have not ended are reported as survivors.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Options {
        Options { patience, ..self }
    }
}
