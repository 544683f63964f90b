//! The names of users and groups, and descriptions of files with them.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::io::Read as _;
use std::os::fd::AsRawFd as _;

use penfold_server::files::{Entry, FileError, Workspace};
use penfold_state::time::format_rfc3339;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::Seen;
use super::entry::{EntryInfo, Kind};
use super::paths::{joined, name_of, normal_path, parent_of};
use super::permissions::permission_text;

/// The most links that a path leads through, as in the kernel.
const MOST_LINKS: usize = 40;
/// The most bytes that are read of the lists of users and groups.
const LONGEST_LIST: u64 = 1 << 20;
/// The beginning of the names of attributes that are metadata.
const METADATA: &str = "user.e2b.";
/// The most bytes of the names of a file's attributes, and of one value.
const LONGEST_ATTRIBUTES: usize = 16 << 10;

/// Names by their numbers.
type List = HashMap<u32, String>;

/// Describes files. The lists of users and groups are read once, when they are needed.
pub(super) struct Names<'a> {
    workspace: &'a Workspace,
    seen: &'a Seen,
    users: OnceCell<List>,
    groups: OnceCell<List>,
}

impl<'a> Names<'a> {
    pub(super) fn new(workspace: &'a Workspace, seen: &'a Seen) -> Names<'a> {
        Names { workspace, seen, users: OnceCell::new(), groups: OnceCell::new() }
    }

    /// Describes a file. A link has its own size and times, and the kind of what it leads to.
    pub(super) fn describe(&self, path: &str, entry: &Entry) -> EntryInfo {
        let stat = &entry.stat;
        let target = entry.target.is_some().then(|| self.target_of(path, entry));
        let (reached, symlink_target) = match target {
            None => (Some(*stat), None),
            Some((target, reached)) => (reached, Some(target)),
        };
        let kind = reached.map_or(Kind::Symlink, |reached| Kind::of_mode(reached.st_mode));
        EntryInfo {
            name: name_of(path).to_owned(),
            kind,
            path: path.to_owned(),
            size: stat.st_size.to_string(),
            mode: reached.map_or(stat.st_mode, |reached| reached.st_mode) & 0o777,
            permissions: permission_text(stat.st_mode),
            owner: self.owner(stat),
            group: self.group(stat),
            modified_time: time_text(stat),
            symlink_target,
            metadata: reached.map(|_| self.metadata(path)).unwrap_or_default(),
        }
    }

    /// Returns the path to which a link leads in the end, and what is there.
    fn target_of(&self, path: &str, entry: &Entry) -> (String, Option<Stat>) {
        let found = self.workspace.at(path, OFlags::PATH, Mode::empty());
        let reached = found.ok().and_then(|found| rustix::fs::fstat(found).ok());
        if let (Some(reached), Ok(real)) = (reached, self.real_path(path)) {
            return (real, Some(reached));
        }
        let text = entry.target.as_deref().map(super::paths::text_of).unwrap_or_default();
        (normal_path(parent_of(path), &text).unwrap_or(text), None)
    }

    /// Returns the path without links of a path.
    fn real_path(&self, path: &str) -> Result<String, FileError> {
        let mut waiting: Vec<String> = parts(path);
        let mut real = "/".to_owned();
        let mut links = 0;
        while let Some(part) = waiting.pop() {
            match part.as_str() {
                "" | "." => continue,
                ".." => {
                    real = parent_of(&real).to_owned();
                    continue;
                }
                _ => {}
            }
            let next = joined(&real, &part);
            let Some(target) = self.workspace.entry(&next)?.target else {
                real = next;
                continue;
            };
            links += 1;
            if links > MOST_LINKS {
                return Err(FileError::System { path: path.to_owned(), errno: Errno::LOOP });
            }
            let target = super::paths::text_of(&target);
            if target.starts_with('/') {
                real.truncate(1);
            }
            waiting.extend(parts(&target));
        }
        Ok(real)
    }

    /// The name of the owner. What belongs to this server belongs to the user of the sandbox.
    fn owner(&self, stat: &Stat) -> String {
        if self.is_jail() && stat.st_uid == rustix::process::geteuid().as_raw() {
            return self.seen.user.name.clone();
        }
        let list = self.users.get_or_init(|| self.list("/etc/passwd"));
        name_in(list, self.seen.users.inside(stat.st_uid))
    }

    fn group(&self, stat: &Stat) -> String {
        if self.is_jail() && stat.st_gid == rustix::process::getegid().as_raw() {
            return self.seen.user.name.clone();
        }
        let list = self.groups.get_or_init(|| self.list("/etc/group"));
        name_in(list, self.seen.groups.inside(stat.st_gid))
    }

    fn is_jail(&self) -> bool {
        self.seen.user.account.is_none()
    }

    /// Reads a list of users or groups.
    fn list(&self, path: &str) -> List {
        let mut text = Vec::new();
        if let Ok((file, _)) = self.workspace.open_plain(path) {
            // A part of the list is better than none.
            let _ = file.take(LONGEST_LIST).read_to_end(&mut text);
        }
        parse_list(&String::from_utf8_lossy(&text))
    }

    /// Reads the metadata of a file.
    fn metadata(&self, path: &str) -> BTreeMap<String, String> {
        let Ok(found) = self.workspace.at(path, OFlags::PATH, Mode::empty()) else { return BTreeMap::new() };
        let found = format!("/proc/self/fd/{}", found.as_raw_fd());
        let mut buffer = vec![0; LONGEST_ATTRIBUTES];
        let length = rustix::fs::listxattr(&found, &mut buffer[..]).unwrap_or(0);
        let names = buffer.get(..length).unwrap_or_default();
        let keys = names.split(|&byte| byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
        keys.filter_map(|name| {
            let key = name.strip_prefix(METADATA)?;
            let mut value = vec![0; LONGEST_ATTRIBUTES];
            let length = rustix::fs::getxattr(&found, name, &mut value[..]).ok()?;
            value.truncate(length);
            Some((key.to_owned(), String::from_utf8(value).ok()?))
        })
        .collect()
    }
}

/// The parts of a path, the last first.
fn parts(path: &str) -> Vec<String> {
    path.split('/').rev().map(str::to_owned).collect()
}

/// Reads lines `NAME:…:NUMBER:…`. The first name of a number counts.
fn parse_list(text: &str) -> List {
    let mut list = List::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(Ok(number))) = (fields.next(), fields.nth(1).map(str::parse)) {
            list.entry(number).or_insert_with(|| name.to_owned());
        }
    }
    list
}

fn name_in(list: &List, number: u32) -> String {
    list.get(&number).cloned().unwrap_or_else(|| number.to_string())
}

fn time_text(stat: &Stat) -> String {
    // What is from before 1970 is shown as of its first moment.
    let time = u64::try_from(stat.st_mtime)
        .map_or(0, |seconds| seconds.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec));
    format_rfc3339(time)
}

impl Kind {
    fn of_mode(mode: u32) -> Kind {
        match FileType::from_raw_mode(mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            _ => Kind::Unspecified,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_names_by_their_numbers() {
        let list =
            parse_list("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:\nother:x:1000:\nbroken\nx:y:z\n\n");
        let names = [0, 1000, 7].map(|number| name_in(&list, number));
        assert_eq!(names, ["root", "user", "7"]);
    }
}
