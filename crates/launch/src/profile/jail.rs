//! What a jail consists of, as arguments of bubblewrap.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use penfold_state::JAIL_PROGRAM;

use penfold_request::JailNetwork as Network;

/// The value of TMPDIR without a scratch directory.
pub const TEMPORARY: &str = "/tmp";
/// Directories that the jail has of its own.
const OWN: [&str; 4] = ["dev", "proc", "run", "tmp"];

/// What root may write in `/proc` without any capability, since the files belong to root: settings of the host.
const SETTINGS: [&str; 9] =
    ["sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "mtrr", "latency_stats"];

/// A jail.
#[derive(Debug)]
pub struct Jail<'a> {
    /// The root directory, if not the host's.
    pub rootfs: Option<&'a Path>,
    /// The network.
    pub network: Network,
    /// Directories to which the command may write; the first is the working directory.
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
        match self.rootfs {
            None => put(&[text("--ro-bind"), text("/"), text("/")]),
            Some(rootfs) => {
                // The root itself is a new file system, so that DIR needs no mount points.
                for (source, name) in listed(rootfs)? {
                    let target = Path::new("/").join(&name);
                    match std::fs::read_link(&source) {
                        Ok(link) => put(&[text("--symlink"), link.as_os_str(), target.as_os_str()]),
                        Err(_) => put(&[text("--ro-bind"), source.as_os_str(), target.as_os_str()]),
                    }
                }
            }
        }
        put(&["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/run"].map(text));
        for name in SETTINGS {
            let path = Path::new("/proc").join(name);
            put(&[text("--ro-bind-try"), path.as_os_str(), path.as_os_str()]);
        }
        let temporary = self.rootfs.unwrap_or(Path::new("/")).join("var/tmp");
        if temporary.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            put(&["--tmpfs", "/var/tmp"].map(text));
        }
        if self.network == Network::Host && self.rootfs.is_none() {
            // /etc/resolv.conf is often a link to here.
            put(&["--ro-bind-try", "/run/systemd/resolve", "/run/systemd/resolve"].map(text));
        }
        put(&[text("--ro-bind"), self.program.as_os_str(), text(JAIL_PROGRAM)]);
        for &directory in &self.writable {
            put(&[text("--bind"), directory.as_os_str(), directory.as_os_str()]);
        }
        if let Some(&directory) = self.writable.first() {
            put(&[text("--chdir"), directory.as_os_str()]);
        }
        if self.rootfs.is_some() {
            put(&["--remount-ro", "/"].map(text));
        }
        if let Some(filter) = self.filter {
            put(&[text("--seccomp"), text(&filter.as_raw_fd().to_string())]);
        }
        put(&[text("--setenv"), text("TMPDIR"), self.temporary.as_os_str()]);
        put(&["--", JAIL_PROGRAM].map(text));
        Ok(words)
    }
}

fn text(word: &str) -> &OsStr {
    OsStr::new(word)
}

/// Lists what is in a root directory, without what each jail has of its own.
fn listed(rootfs: &Path) -> std::io::Result<Vec<(PathBuf, OsString)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(rootfs)? {
        let entry = entry?;
        if OWN.iter().all(|own| entry.file_name() != *own) {
            found.push((entry.path(), entry.file_name()));
        }
    }
    found.sort();
    Ok(found)
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
