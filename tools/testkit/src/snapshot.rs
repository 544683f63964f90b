//! The host as a set of named things.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::mounts;
use crate::proc;

/// The kind of a thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A process that is not dead, or a dead one that its parent does not reap.
    Process,
    /// A directory of a cgroup hierarchy, v1 or v2.
    Cgroup,
    /// A mount of this process's mount namespace.
    Mount,
    /// A named network namespace below `/run/netns`, or one with a process.
    NetworkNamespace,
    /// A network device of this process's network namespace.
    Link,
    /// A file or directory below one of the watched directories.
    Path,
    /// A unix socket with a name.
    Socket,
    /// A loop device with a file behind it.
    Loop,
}

impl Kind {
    /// Tells whether the kernel removes such a thing some time after its last user went. Then a short wait is no leak.
    /// Examples: mounts of a dead mount namespace, network namespaces with their links (`cleanup_net` runs in the
    /// background), sockets (closed after the exit is visible), loop devices.
    pub fn is_asynchronous(self) -> bool {
        !matches!(self, Kind::Process | Kind::Cgroup | Kind::Path)
    }
}

/// The directories and names to compare.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Directories whose contents are compared; a missing directory counts as empty.
    pub directories: Vec<PathBuf>,
    /// Prefixes of entries of the temporary directory and of `/run` that are compared.
    pub prefixes: Vec<String>,
}

impl Filter {
    /// Returns a filter for everything that penfold makes outside a state root chosen by `--root`.
    pub fn penfold() -> Filter {
        let mut directories = vec![PathBuf::from("/run/penfold")];
        // A library otherwise reads no variables, but this one is the session's only name for the directory.
        let own = PathBuf::from(format!("/run/user/{}", rustix::process::geteuid().as_raw()));
        let base = std::env::var_os("XDG_RUNTIME_DIR").map_or(own, PathBuf::from);
        directories.push(base.join("penfold"));
        Filter { directories, prefixes: vec!["penfold".to_owned()] }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Item {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    /// The pid of a process; otherwise empty.
    pub(crate) pid: Option<i32>,
}

/// A thing that exists on one side only.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Difference {
    /// The kind.
    pub kind: Kind,
    /// The name: a path, a device, or `PID:START name`.
    pub name: String,
    /// Whether the thing is new; otherwise it has vanished.
    pub appeared: bool,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = if self.appeared { "left behind" } else { "vanished" };
        write!(f, "{how}: {:?} {}", self.kind, self.name)
    }
}

/// All things of the host at one moment, as far as this process can see them.
#[derive(Debug, Clone)]
pub struct HostSnapshot {
    pub(crate) items: BTreeSet<Item>,
}

impl HostSnapshot {
    /// Takes a snapshot without kernel threads and the calling process.
    pub fn take(filter: &Filter) -> HostSnapshot {
        let mut snapshot = HostSnapshot { items: BTreeSet::new() };
        snapshot.processes();
        for cgroup in mounts::cgroups() {
            snapshot.add(Kind::Cgroup, cgroup.display().to_string());
        }
        for mount in mounts::mounts().unwrap_or_default() {
            snapshot.add(Kind::Mount, format!("{} ({})", mount.point.display(), mount.fs_type));
        }
        for link in names(Path::new("/sys/class/net")) {
            snapshot.add(Kind::Link, link);
        }
        for name in names(Path::new("/run/netns")) {
            snapshot.add(Kind::NetworkNamespace, format!("/run/netns/{name}"));
        }
        snapshot.paths(filter);
        snapshot.sockets();
        snapshot.loops();
        snapshot
    }

    fn add(&mut self, kind: Kind, name: String) {
        self.items.insert(Item { kind, name, pid: None });
    }

    fn processes(&mut self) {
        let own = proc::this().map_or(0, |stat| stat.id.pid);
        for process in proc::all() {
            let pid = process.id.pid;
            // 2 is kthreadd, the parent of all kernel threads.
            if pid == own || pid == 2 || process.parent == 2 {
                continue;
            }
            // A dead child of this process is not a leak: this process still holds its handle.
            if process.is_dead() && process.parent == own {
                continue;
            }
            let name = if process.is_dead() {
                format!("{} zombie [{}] of {}", process.id, process.name.escape_default(), process.parent)
            } else {
                format!("{} {}", process.id, proc::command_line(&process))
            };
            self.items.insert(Item { kind: Kind::Process, name, pid: Some(pid) });
            if let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/net")) {
                self.add(Kind::NetworkNamespace, namespace.display().to_string());
            }
        }
    }

    fn paths(&mut self, filter: &Filter) {
        for directory in &filter.directories {
            self.walk(directory, 0);
        }
        for base in [std::env::temp_dir(), PathBuf::from("/run")] {
            for name in names(&base) {
                if filter.prefixes.iter().any(|prefix| name.starts_with(prefix)) {
                    self.add(Kind::Path, base.join(name).display().to_string());
                }
            }
        }
    }

    /// Adds what is in this directory now.
    pub(crate) fn add_below(&mut self, directory: &Path) {
        self.walk(directory, 0);
    }

    fn walk(&mut self, directory: &Path, depth: u32) {
        for name in names(directory) {
            let path = directory.join(name);
            let is_directory = path.symlink_metadata().is_ok_and(|data| data.is_dir());
            self.add(Kind::Path, path.display().to_string());
            if is_directory && depth < 16 {
                self.walk(&path, depth + 1);
            }
        }
    }

    fn sockets(&mut self) {
        for line in fs::read_to_string("/proc/net/unix").unwrap_or_default().lines().skip(1) {
            if let Some(name) = line.split_ascii_whitespace().nth(7) {
                self.add(Kind::Socket, name.to_owned());
            }
        }
    }

    fn loops(&mut self) {
        for name in names(Path::new("/sys/block")) {
            if let Ok(file) = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")) {
                self.add(Kind::Loop, format!("{name} {}", file.trim()));
            }
        }
    }

    /// Returns the things that exist on one side only; `self` is the earlier side.
    pub fn diff(&self, later: &HostSnapshot) -> Vec<Difference> {
        let tell = |appeared: bool| {
            move |item: &Item| Difference { kind: item.kind, name: item.name.clone(), appeared }
        };
        let key = |item: &Item| item.kind != Kind::Process;
        let came = later.items.iter().filter(|item| !self.has(item)).map(tell(true));
        // Processes that existed before may end at any time.
        let went = self.items.iter().filter(|item| key(item) && !later.has(item)).map(tell(false));
        came.chain(went).collect()
    }

    /// A process stays the same under another name.
    pub(crate) fn has(&self, item: &Item) -> bool {
        if item.kind != Kind::Process {
            return self.items.contains(item);
        }
        let id = |name: &str| name.split(' ').next().map(str::to_owned);
        let wanted = id(&item.name);
        self.items.iter().any(|other| other.kind == Kind::Process && id(&other.name) == wanted)
    }
}

fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
