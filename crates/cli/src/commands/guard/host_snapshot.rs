//! What the host has besides processes, before and after the tests. Others may make such things at the same time, so a new one is
//! only named.
//!
//! Everything is read as this process sees it: its network, IPC and mount namespaces.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Names of namespaces, links, mounts, objects of IPC, loop devices, tables of nftables and cgroups.
#[derive(Debug, Default)]
pub(super) struct HostSnapshot {
    things: BTreeSet<String>,
}

/// The most cgroups that are looked at.
const MOST_CGROUPS: usize = 1024;
/// The objects of System V IPC. These files show the namespace of their reader.
const SYSV: [(&str, &str); 3] =
    [("shm", "SysV shared memory"), ("msg", "SysV message queue"), ("sem", "SysV semaphores")];

impl HostSnapshot {
    /// Looks at the host. What cannot be read is left out.
    pub(super) fn look() -> HostSnapshot {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mounts: Vec<Mount<'_>> = mounts.lines().filter_map(Mount::parse).collect();
        let mut things: BTreeSet<String> =
            mounts.iter().map(|mount| format!("mount {}", mount.point)).collect();
        things.extend(named("network namespace", names("/run/netns")));
        things.extend(named("link", links()));
        for (file, kind) in SYSV {
            things.extend(named(kind, sysv(file)));
        }
        things.extend(names("/dev/shm").map(|name| match name.strip_prefix("sem.") {
            Some(name) => format!("POSIX semaphore {name}"),
            None => format!("POSIX shared memory {name}"),
        }));
        for mount in mounts.iter().filter(|mount| mount.kind == "mqueue") {
            things.extend(named("POSIX message queue", names(mount.point)));
        }
        things.extend(loops());
        things.extend(penfold_resource::nft_tables().into_iter().map(|table| format!("nft table {table}")));
        things.extend(named("cgroup", cgroups(&mounts).into_iter()));
        HostSnapshot { things }
    }

    /// Returns what `before` did not have.
    pub(super) fn since(&self, before: &HostSnapshot) -> Vec<String> {
        self.things.difference(&before.things).cloned().collect()
    }
}

/// A line of `/proc/self/mountinfo`.
struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl Mount<'_> {
    fn parse(line: &str) -> Option<Mount<'_>> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        Some(Mount { root, point, kind: right.next()?, options: right.nth(1)? })
    }

    /// Tells whether the mount shows the hierarchy of a line of `/proc/self/cgroup` with these controllers; none for cgroup v2.
    fn has_hierarchy(&self, controllers: &str) -> bool {
        if self.kind == "cgroup2" {
            return controllers.is_empty();
        }
        let first = controllers.split(',').next().unwrap_or_default();
        !first.is_empty() && self.options.split(',').any(|option| option == first)
    }
}

fn named(kind: &str, names: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    names.map(move |name| format!("{kind} {name}"))
}

/// Returns the names in a directory.
fn names(directory: impl AsRef<Path>) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// Returns the links of this network namespace. `/sys` shows the namespace in which it was mounted.
fn links() -> impl Iterator<Item = String> {
    let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let names: Vec<String> =
        text.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect();
    names.into_iter()
}

/// Returns the numbers of the objects that a file lists, the second word of each line.
fn sysv(file: &str) -> impl Iterator<Item = String> {
    let text = fs::read_to_string(Path::new("/proc/sysvipc").join(file)).unwrap_or_default();
    let numbers: Vec<String> = text
        .lines()
        .skip(1)
        .filter_map(|line| line.split_ascii_whitespace().nth(1).map(str::to_owned))
        .collect();
    numbers.into_iter()
}

/// Returns the loop devices in use, with their files.
fn loops() -> Vec<String> {
    let file = |name: &str| fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok();
    let loops = names("/sys/block").filter(|name| name.starts_with("loop"));
    loops.filter_map(|name| Some(format!("loop device {name} of {}", file(&name)?.trim()))).collect()
}

/// Returns the cgroups directly below each root, and all below that of this process.
fn cgroups(mounts: &[Mount<'_>]) -> BTreeSet<String> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut found = BTreeSet::new();
    for mount in mounts.iter().filter(|mount| matches!(mount.kind, "cgroup" | "cgroup2")) {
        let root = Path::new(mount.point);
        let mut add = |directory: PathBuf| {
            if found.len() < MOST_CGROUPS {
                found.insert(directory.to_string_lossy().into_owned());
            }
        };
        below(root).into_iter().for_each(&mut add);
        let path = own.lines().find_map(|line| {
            let (_, line) = line.split_once(':')?;
            let (controllers, path) = line.split_once(':')?;
            mount.has_hierarchy(controllers).then_some(path)
        });
        let inside = path.and_then(|path| Path::new(path).strip_prefix(mount.root).ok());
        let mut queue: Vec<PathBuf> = inside.map(|path| below(&root.join(path))).unwrap_or_default();
        let mut looked = BTreeSet::new();
        while let Some(directory) = queue.pop() {
            if looked.len() < MOST_CGROUPS && looked.insert(directory.clone()) {
                add(directory.clone());
                queue.extend(below(&directory));
            }
        }
    }
    found
}

/// Returns the directories in a directory.
fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        // Sandboxes have records, and name themselves.
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"penfold-"))
        .map(|entry| entry.path())
        .collect()
}
