//! The names of the hostile trees and what a judge must know of each.

/// How much of a tree can be seen alive once it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Every process named in the ready file lives until somebody ends it.
    Steady,
    /// Some processes come and go; the ready file names only the others.
    Moving,
    /// The leader exits as soon as the tree stands, so that a good tool may already be ending the rest.
    Hasty,
}

/// One hostile tree.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The word to start it by.
    pub name: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    /// What can be seen of it.
    pub pace: Pace,
    /// What the leader exits with when it is asked to.
    pub exit_code: u8,
    /// The number to give the tree with `-n` for its full size, where it has one: by default it is small, and soon built.
    pub full_size: Option<u32>,
}

impl Entry {
    const fn full_size(self, number: u32) -> Entry {
        Entry { full_size: Some(number), ..self }
    }
}

const fn steady(name: &'static str, about: &'static str) -> Entry {
    Entry { name, about, pace: Pace::Steady, exit_code: 0, full_size: None }
}

const fn moving(name: &'static str, about: &'static str) -> Entry {
    Entry { name, about, pace: Pace::Moving, exit_code: 0, full_size: None }
}

/// All trees, mildest first.
pub const TREES: &[Entry] = &[
    steady("plain", "a child that sleeps"),
    steady("ignore-term", "leader and child ignore TERM, INT and HUP"),
    steady("block-all", "leader and child block every signal that can be blocked"),
    steady("own-group", "a child in a process group of its own"),
    steady("setsid", "a child in a session of its own"),
    steady("daemon", "a double-forked daemon whose parent is gone"),
    steady("daemon-closed-fds", "a daemon that closed all its descriptors"),
    steady("daemon-holds-pipe", "a daemon that keeps the standard output open"),
    steady("thread-child", "a child of a thread that is not the main thread"),
    steady("subreaper", "a grandchild that reparented to a nested subreaper"),
    steady("subreaper-ignores-term", "the same, and the nested subreaper ignores TERM"),
    steady("zombies", "a process that never reaps its 50 dead children").full_size(500),
    steady("zombie-leader", "a child whose main thread has exited while two threads live"),
    steady("zombie-main", "the command's own main thread has exited while others live"),
    moving("comet", "fork, the parent exits, on and on"),
    moving("hydra", "each dead child is replaced, a dead parent as well"),
    moving("watchers", "two processes that restart each other"),
    moving("fork-on-term", "each TERM makes one more process").full_size(150),
    moving("storm", "forks flat out, up to 40 alive").full_size(150),
    steady("wide", "64 children").full_size(500),
    steady("deep", "a chain of 32 generations").full_size(200),
    steady("threads", "a child with 40 threads").full_size(200),
    steady("memory", "a child that touched 20 MiB").full_size(200),
    steady("stopped", "a child stopped by STOP"),
    steady("stopped-term-pending", "a stopped child with a TERM pending"),
    steady("traced", "a child in a tracing stop, its tracer beside it"),
    steady("vfork", "a parent that waits in vfork for its child"),
    steady("no-environ", "a child and a daemon with an empty environment"),
    steady("undumpable", "a daemon whose /proc files belong to root"),
    steady("renamed", "a daemon that calls itself a kernel thread, with `)` and a newline"),
    steady("close-pids", "20 children with neighbouring pids, born in the same clock tick"),
    steady("pidns", "a child and grandchild in their own pid namespace"),
    steady("user-pidns", "the same in their own user namespace"),
    steady("mountns-tmpfs", "a daemon in its own mount namespace that holds a tmpfs open"),
    steady("pty", "a child leading a session on its own pseudo-terminal"),
    steady("moved-cgroup", "a daemon that moved to another cgroup"),
    steady("child-cgroups", "children in nested cgroups below the command's own"),
    steady("frozen-v2", "a daemon in a frozen cgroup below the command's own"),
    steady("frozen-v1", "a daemon frozen by the v1 freezer"),
    steady("frozen-v1-pidns", "a pid namespace whose init is frozen by the v1 freezer"),
    steady("kill-parent", "a leader that kills its parent when told, beside a daemon"),
    steady("kill-grandparents", "a leader that kills its parent and that one's parent when told"),
    steady("kill-group", "a leader that kills its process group when told, leaving a daemon"),
    Entry { exit_code: 3, ..steady("strays-exit-3", "a leader that exits 3 and leaves three strays") },
    Entry { exit_code: 3, pace: Pace::Hasty, ..steady("hasty", "the same, at once") },
    Entry { exit_code: 5, ..moving("storm-exit", "a leader that exits 5 and leaves a storm") },
    steady("setuid-root", "a child that became root while the command is an ordinary user"),
];

/// A tree that nothing can end before its file system is thawed, so not among those that a tool is judged by. Its
/// command needs `--path` ([`crate::FrozenFs`]).
pub const FROZEN_WRITER: Entry =
    steady("frozen-writer", "a daemon in state D, writing to a frozen file system");

/// Finds a tree by its name.
pub fn find(name: &str) -> Option<&'static Entry> {
    TREES.iter().chain(std::iter::once(&FROZEN_WRITER)).find(|tree| tree.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_many() {
        let mut names: Vec<_> = TREES.iter().map(|tree| tree.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TREES.len());
        assert!(names.len() >= 32);
    }
}
