//! The names of the hostile trees, and the facts that a judge needs.

/// The part of a tree that can be seen alive once the tree is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Every process named in the ready file lives until another process ends it.
    Steady,
    /// Some processes come and go; the ready file names only the others.
    Moving,
    /// The leader exits as soon as the tree is complete, so a good tool may already be ending the rest.
    Hasty,
}

/// One hostile tree.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The argument that starts the tree.
    pub name: &'static str,
    /// The behaviour, in one line.
    pub about: &'static str,
    /// The visible part.
    pub pace: Pace,
    /// The leader's exit code after a request to exit.
    pub exit_code: u8,
    /// The size for `-n` at which the tree is full-sized, if it has a size. The default is small and quickly built.
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
    steady("subreaper-ignores-term", "as `subreaper`, and the nested subreaper ignores TERM"),
    steady("zombies", "a process that never reaps its 50 dead children").full_size(500),
    steady("zombie-leader", "a child whose main thread has exited while two threads live"),
    steady("zombie-main", "the command's own main thread has exited while others live"),
    moving("comet", "a process that forks and exits, without end"),
    moving("hydra", "each dead child is replaced, a dead parent as well"),
    moving("watchers", "two processes that restart each other"),
    moving("fork-on-term", "a tree that forks one more process on each TERM").full_size(150),
    moving("storm", "processes that fork without pause, up to 40 alive").full_size(150),
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
    steady("renamed", "a daemon with the name of a kernel thread, `)` and a newline"),
    steady("close-pids", "20 children with neighbouring pids, born in the same clock tick"),
    steady("pidns", "a child and grandchild in their own pid namespace"),
    steady("user-pidns", "as `pidns`, in their own user namespace"),
    steady("mountns-tmpfs", "a daemon in its own mount namespace that holds a tmpfs open"),
    steady("pty", "a child leading a session on its own pseudo-terminal"),
    steady("moved-cgroup", "a daemon that moved to another cgroup"),
    steady("child-cgroups", "children in nested cgroups below the command's own"),
    steady("frozen-v2", "a daemon in a frozen cgroup below the command's own"),
    steady("frozen-v1", "a daemon frozen by the v1 freezer"),
    steady("frozen-v1-pidns", "a pid namespace whose init is frozen by the v1 freezer"),
    steady("kill-parent", "a leader that kills its parent on request, beside a daemon"),
    steady("kill-grandparents", "a leader that kills its parent and grandparent on request"),
    steady("kill-group", "a leader that kills its process group on request, and leaves a daemon"),
    Entry { exit_code: 3, ..steady("strays-exit-3", "a leader that exits 3 and leaves three strays") },
    Entry { exit_code: 3, pace: Pace::Hasty, ..steady("hasty", "as `strays-exit-3`, without a request") },
    Entry { exit_code: 5, ..moving("storm-exit", "a leader that exits 5 and leaves a storm") },
    steady("setuid-root", "a child that became root, of a command that runs as an ordinary user"),
];

/// A tree that ends only after its file system is thawed, so no tool is judged by it. Its command needs `--path`
/// ([`crate::FrozenFs`]).
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
