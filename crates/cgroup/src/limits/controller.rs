//! The controllers that hold limits.

use std::fmt;

/// A controller that holds a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controller {
    /// `memory`.
    Memory,
    /// `pids`.
    Pids,
    /// `cpu`.
    Cpu,
}

impl Controller {
    /// All controllers that hold limits.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Pids, Self::Cpu];

    /// Returns the name that the kernel uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }

    /// Tells whether the text of `cgroup.controllers` or `cgroup.subtree_control` has this controller.
    pub fn is_in(self, list: &str) -> bool {
        list.split_ascii_whitespace().any(|name| name == self.as_str())
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
