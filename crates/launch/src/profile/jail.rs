//! What a jail consists of, as arguments of bubblewrap.

mod accounts;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use penfold_state::JAIL_PROGRAM;

use penfold_request::JailNetwork as Network;

pub use accounts::{Accounts, home, shell};

/// The value of TMPDIR without a scratch directory, and where that is a home.
pub const TEMPORARY: &str = "/tmp";
/// Directories that the jail has of its own.
const OWN: [&str; 4] = ["dev", "proc", "run", "tmp"];

/// Directories that a jail with a user does not show.
const EMPTY: [&str; 7] = ["/dev", "/proc", "/run", "/tmp", "/var/tmp", accounts::HOMES, ROOTS_HOME];

/// What root may write in `/proc` without any capability, since the files belong to root: settings of the host.
const SETTINGS: [&str; 9] =
    ["sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "mtrr", "latency_stats"];

/// The home of root.
const ROOTS_HOME: &str = "/root";

/// A user of a jail's own.
#[derive(Debug, Clone, Copy)]
pub struct JailUser<'a> {
    /// The name.
    pub name: &'a str,
    /// The directory that becomes the home.
    pub home: &'a Path,
    /// Directories that are empty in the jail.
    pub hidden: &'a [PathBuf],
    /// The text of `/etc/passwd`, and that of `/etc/group`.
    pub accounts: (BorrowedFd<'a>, BorrowedFd<'a>),
}

/// A jail.
#[derive(Debug)]
pub struct Jail<'a> {
    /// The root directory, if not the host's.
    pub rootfs: Option<&'a Path>,
    /// The network.
    pub network: Network,
    /// The user, if not that of penfold. Its home is the working directory.
    pub user: Option<JailUser<'a>>,
    /// Directories to which the command may write; without a user, the first is the working directory.
    pub writable: Vec<&'a Path>,
    /// The value of TMPDIR.
    pub temporary: &'a Path,
    /// Whether the jail goes on when the process above it dies.
    pub outlives_parent: bool,
    /// Whether all capabilities are dropped. Without root, bubblewrap drops them anyway.
    pub is_root: bool,
    /// The filter of system calls.
    pub filter: Option<BorrowedFd<'a>>,
    /// The program of penfold that starts the command.
    pub program: &'a Path,
}

impl Jail<'_> {
    /// Returns the arguments of `bwrap` up to the words of the command, which are those of penfold in the jail.
    ///
    /// # Errors
    /// When the root directory cannot be read.
    pub fn arguments(&self) -> std::io::Result<Vec<OsString>> {
        let mut words: Vec<OsString> = Vec::new();
        let mut put = |list: &[&OsStr]| words.extend(list.iter().map(|&word| word.to_owned()));
        for namespace in ["pid", "ipc", "uts", "cgroup-try"] {
            put(&[text(&format!("--unshare-{namespace}"))]);
        }
        if self.network == Network::None {
            put(&[text("--unshare-net")]);
        }
        if !self.outlives_parent {
            put(&[text("--die-with-parent")]);
        }
        if self.is_root {
            put(&[text("--cap-drop"), text("ALL")]);
        }
        if self.user.is_some() {
            let id = accounts::ID.to_string();
            put(&["--unshare-user", "--uid", &id, "--gid", &id].map(text));
        }
        let has_new_root = self.has_new_root();
        self.put_root(&mut words, has_new_root)?;
        self.put_own(&mut words);
        self.put_user(&mut words)?;
        let hidden = self.hidden();
        let mut put = |list: &[&OsStr]| words.extend(list.iter().map(|&word| word.to_owned()));
        for directory in &hidden {
            put(&[text("--tmpfs"), directory.as_os_str()]);
        }
        put(&[text("--ro-bind"), self.program.as_os_str(), text(JAIL_PROGRAM)]);
        let home = self.user.map(|user| home(user.name));
        let homes = self.user.iter().zip(&home).map(|(user, home)| (user.home, home.as_path()));
        let places = homes.chain(self.writable.iter().map(|&directory| (directory, directory)));
        for (source, target) in places.clone() {
            put(&[text("--bind"), source.as_os_str(), target.as_os_str()]);
        }
        for directory in &hidden {
            put(&[text("--remount-ro"), directory.as_os_str()]);
        }
        if let Some((_, directory)) = places.clone().next() {
            put(&[text("--chdir"), directory.as_os_str()]);
        }
        if self.user.is_some() {
            put(&["--remount-ro", accounts::HOMES].map(text));
            if self.has_directory("root") {
                put(&["--remount-ro", ROOTS_HOME].map(text));
            }
        }
        if has_new_root {
            put(&["--remount-ro", "/"].map(text));
        }
        if let Some(filter) = self.filter {
            put(&[text("--seccomp"), text(&filter.as_raw_fd().to_string())]);
        }
        put(&[text("--setenv"), text("TMPDIR"), self.temporary.as_os_str()]);
        put(&["--", JAIL_PROGRAM].map(text));
        Ok(words)
    }

    /// The directories to hide that the jail would show.
    fn hidden(&self) -> Vec<PathBuf> {
        let Some(user) = self.user.filter(|_| self.rootfs.is_none()) else { return Vec::new() };
        let mut found: Vec<PathBuf> = Vec::new();
        // What is above another comes first.
        let directories: BTreeSet<PathBuf> =
            user.hidden.iter().filter_map(|directory| directory.canonicalize().ok()).collect();
        for directory in directories {
            let is_empty = EMPTY.iter().any(|empty| directory.starts_with(empty))
                || found.iter().any(|above| directory.starts_with(above));
            if !is_empty && directory.is_dir() && directory != Path::new("/") {
                found.push(directory);
            }
        }
        found
    }

    /// The directory whose files the jail shows.
    fn root(&self) -> &Path {
        self.rootfs.unwrap_or(Path::new("/"))
    }

    /// Whether the root has a directory of this name, which is no link.
    fn has_directory(&self, name: &str) -> bool {
        self.root().join(name).symlink_metadata().is_ok_and(|found| found.is_dir())
    }

    /// Whether the root is a new file system, in which bubblewrap can make mount points. That of the host has those that a jail needs,
    /// but rarely lacks those for a user.
    fn has_new_root(&self) -> bool {
        let lacks_place = || !self.has_directory("home") || !self.has_directory("etc");
        self.rootfs.is_some() || (self.user.is_some() && lacks_place())
    }

    /// Adds the root directory.
    fn put_root(&self, words: &mut Vec<OsString>, is_new: bool) -> std::io::Result<()> {
        if !is_new {
            words.extend(["--ro-bind", "/", "/"].map(Into::into));
            return Ok(());
        }
        let left_out = |name: &OsStr| {
            OWN.iter().any(|own| name == *own) || (self.user.is_some() && (name == "home" || name == "root"))
        };
        put_entries(words, self.root(), Path::new("/"), left_out)
    }

    /// Adds the directories that each jail has of its own.
    fn put_own(&self, words: &mut Vec<OsString>) {
        let mut put = |list: &[&OsStr]| words.extend(list.iter().map(|&word| word.to_owned()));
        put(&["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/run"].map(text));
        for name in SETTINGS {
            let path = Path::new("/proc").join(name);
            put(&[text("--ro-bind-try"), path.as_os_str(), path.as_os_str()]);
        }
        let temporary = [Some("/tmp"), Some("/var/tmp").filter(|_| self.has_directory("var/tmp"))];
        for place in temporary.into_iter().flatten() {
            if self.user.is_some() {
                put(&["--perms", "1777"].map(text));
            }
            put(&["--tmpfs", place].map(text));
        }
        if self.network == Network::Host && self.rootfs.is_none() {
            // /etc/resolv.conf is often a link to here.
            put(&["--ro-bind-try", "/run/systemd/resolve", "/run/systemd/resolve"].map(text));
        }
    }

    /// Adds what the user's processes find: its account, and no home but its own.
    fn put_user(&self, words: &mut Vec<OsString>) -> std::io::Result<()> {
        let Some(user) = self.user else { return Ok(()) };
        let etc = self.root().join("etc");
        match etc.symlink_metadata() {
            Ok(found) if !found.is_dir() => {
                return Err(std::io::Error::other(format!("`{}` is no directory", etc.display())));
            }
            _ => {}
        }
        let is_file = |name: &str| etc.join(name).symlink_metadata().is_ok_and(|found| found.is_file());
        // A mount needs a file in its place, and the directory is read-only.
        let has_own_etc = !is_file("passwd") || !is_file("group");
        if has_own_etc {
            words.extend(["--tmpfs", "/etc"].map(Into::into));
            if self.has_directory("etc") {
                put_entries(words, &etc, Path::new("/etc"), |name| name == "passwd" || name == "group")?;
            }
        }
        let (passwd, group) = user.accounts;
        for (file, path) in [(passwd, "/etc/passwd"), (group, "/etc/group")] {
            let number = file.as_raw_fd().to_string();
            words.extend(["--perms", "0644", "--ro-bind-data", &number, path].map(Into::into));
        }
        if has_own_etc {
            words.extend(["--remount-ro", "/etc"].map(Into::into));
        }
        words.extend(["--tmpfs", accounts::HOMES].map(Into::into));
        if self.has_directory("root") {
            words.extend(["--tmpfs", ROOTS_HOME].map(Into::into));
        }
        Ok(())
    }
}

/// Adds what is in a directory, entry by entry, below another place.
fn put_entries(
    words: &mut Vec<OsString>,
    directory: &Path,
    place: &Path,
    is_left_out: impl Fn(&OsStr) -> bool,
) -> std::io::Result<()> {
    let mut found: Vec<(PathBuf, OsString)> = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if !is_left_out(&entry.file_name()) {
            found.push((entry.path(), entry.file_name()));
        }
    }
    found.sort();
    for (source, name) in found {
        let target = place.join(&name);
        match std::fs::read_link(&source) {
            Ok(link) => words.extend(["--symlink".into(), link.into_os_string(), target.into_os_string()]),
            Err(_) => words.extend(["--ro-bind".into(), source.into_os_string(), target.into_os_string()]),
        }
    }
    Ok(())
}

fn text(word: &str) -> &OsStr {
    OsStr::new(word)
}

/// Tells why a jail cannot have this working directory, which would be writable.
pub fn check_directory(directory: &Path, rootfs: Option<&Path>) -> Result<(), String> {
    let shown = directory.display();
    let first = directory.components().find_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    let Some(first) = first else {
        return Err(format!("cannot make a jail: the working directory `{shown}` would be writable"));
    };
    let is_whole = directory.components().count() == 2;
    if ["dev", "proc", "sys"].iter().any(|own| first == *own) || (is_whole && first == "run") {
        return Err(format!("cannot make a jail: the working directory is `{shown}`"));
    }
    if let Some(rootfs) = rootfs
        && OWN.iter().all(|own| first != *own)
        && rootfs.join(first).symlink_metadata().is_ok()
        && !rootfs.join(directory.strip_prefix("/").unwrap_or(directory)).is_dir()
    {
        return Err(format!("cannot make a jail: `{}` has no directory `{shown}`", rootfs.display()));
    }
    Ok(())
}

/// Finds the program of bubblewrap.
pub fn find_bwrap(path: Option<&OsStr>) -> Option<PathBuf> {
    let path = path.unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
    std::env::split_paths(path).map(|dir| dir.join("bwrap")).find(|path| {
        path.is_absolute()
            && path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_undoes_the_jail_is_refused() {
        for wrong in ["/", "/proc/sys", "/dev", "/sys/fs", "/run"] {
            assert!(check_directory(Path::new(wrong), None).is_err(), "{wrong}");
        }
        for good in ["/home/user", "/srv", "/run/user/1000/x", "/tmp"] {
            assert_eq!(check_directory(Path::new(good), None), Ok(()), "{good}");
        }
    }
}
