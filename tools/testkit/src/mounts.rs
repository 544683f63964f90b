//! Mounts and cgroup directories of the host.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The mount point.
    pub point: PathBuf,
    /// The directory of the file system that is the mount's root.
    pub root: PathBuf,
    /// The type of the file system.
    pub fs_type: String,
    /// The options of the file system; for a v1 cgroup hierarchy, its controllers.
    pub options: String,
}

/// Returns the mounts in the namespace of this process.
///
/// # Errors
/// When /proc is not mounted.
pub fn mounts() -> io::Result<Vec<Mount>> {
    Ok(fs::read_to_string("/proc/self/mountinfo")?.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let root = unescape(left.next()?);
    let point = unescape(left.next()?);
    let mut right = right.splitn(3, ' ');
    let fs_type = right.next()?.to_owned();
    Some(Mount { point, root, fs_type, options: right.nth(1)?.to_owned() })
}

/// Decodes the octal escapes of mountinfo.
fn unescape(text: &str) -> PathBuf {
    let mut plain = text.to_owned();
    for (escaped, letter) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        plain = plain.replace(escaped, letter);
    }
    PathBuf::from(plain)
}

/// Returns the directory of this process's own cgroup2 cgroup, if visible.
pub fn own_cgroup() -> Option<PathBuf> {
    cgroup_file("/proc/self/cgroup")
}

/// Returns the directory of a process's cgroup2 cgroup, if visible.
pub fn cgroup_of(pid: i32) -> Option<PathBuf> {
    cgroup_file(&format!("/proc/{pid}/cgroup"))
}

fn cgroup_file(file: &str) -> Option<PathBuf> {
    let text = fs::read_to_string(file).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mount = mounts().ok()?.into_iter().find(|mount| mount.fs_type == "cgroup2")?;
    let below = Path::new(path).strip_prefix(&mount.root).ok()?;
    Some(mount.point.join(below))
}

/// Returns the mount point of the cgroup2 hierarchy.
pub fn cgroup2() -> Option<PathBuf> {
    mounts().ok()?.into_iter().find(|mount| mount.fs_type == "cgroup2").map(|mount| mount.point)
}

/// Returns the mount point of the v1 freezer.
pub fn freezer() -> Option<PathBuf> {
    let is_freezer = |mount: &Mount| {
        mount.fs_type == "cgroup" && mount.options.split(',').any(|option| option == "freezer")
    };
    mounts().ok()?.into_iter().find(is_freezer).map(|mount| mount.point)
}

/// Returns every directory of every mounted cgroup hierarchy, without the mount points, parents first.
pub fn cgroups() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for mount in mounts().unwrap_or_default() {
        if mount.fs_type == "cgroup2" || mount.fs_type == "cgroup" {
            walk(&mount.point, &mut found);
        }
    }
    found
}

pub(crate) fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.push(entry.path());
            walk(&entry.path(), found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_line_is_read() {
        let line = "37 31 0:34 / /sys/fs/my\\040cgroup rw,relatime shared:9 - cgroup cgroup rw,freezer";
        let mount = parse(line).unwrap();
        assert_eq!(mount.point, Path::new("/sys/fs/my cgroup"));
        assert_eq!((mount.fs_type.as_str(), mount.options.as_str()), ("cgroup", "rw,freezer"));
    }
}
