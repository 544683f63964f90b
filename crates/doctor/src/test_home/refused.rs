//! Directories that are no home of a test.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use penfold_cgroup::mountinfo;
use rustix::fs::Stat;

const SYSTEM: &str = "a directory of the system";
const SHARED: &str = "shared by all users";
const HOME: &str = "the home directory of a user";
const SANDBOXES: &str = "the usual place of a user's sandboxes";

/// Directories below which there is no home of a test.
const WHOLE: [&str; 10] =
    ["/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/sbin", "/sys", "/usr"];
/// Directories that have homes of tests below them at most.
const ONLY_ITSELF: [&str; 13] = [
    "/dev",
    "/home",
    "/media",
    "/mnt",
    "/opt",
    "/run",
    "/run/lock",
    "/srv",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/run",
];

/// Returns why this path, which has no links in it, is refused.
pub(super) fn by_path(path: &Path) -> Option<&'static str> {
    let parts: Vec<&OsStr> = path.iter().collect();
    let words: Vec<&str> = parts.iter().map(|part| part.to_str().unwrap_or("")).collect();
    match words.as_slice() {
        ["/"] => Some("the root of the file system"),
        ["/", "tmp"] | ["/", "var", "tmp"] | ["/", "dev", "shm"] | ["/", "run", "user"] => Some(SHARED),
        ["/", "root"] | ["/", "home", _] => Some(HOME),
        ["/", "run", "user", _] => Some("the runtime directory of a user"),
        ["/", "run", "penfold"] | ["/", "run", "user", _, "penfold"] => Some(SANDBOXES),
        ["/", "tmp", name] | ["/", "dev", "shm", name]
            if name.strip_prefix("penfold-").is_some_and(is_number) =>
        {
            Some(SANDBOXES)
        }
        _ if WHOLE.iter().any(|whole| path.starts_with(whole)) => Some(SYSTEM),
        _ if ONLY_ITSELF.iter().any(|only| path == Path::new(only)) => Some(SYSTEM),
        _ => None,
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Refuses the home directory of this user.
pub(super) fn user_home(directory: &Stat, home: Option<&Path>) -> Option<&'static str> {
    let stat = rustix::fs::stat(home?).ok()?;
    ((stat.st_dev, stat.st_ino) == (directory.st_dev, directory.st_ino)).then_some("your home directory")
}

/// Refuses a mount point with files of other users.
pub(super) fn shared_mount(path: &Path) -> Option<&'static str> {
    let text = std::fs::read("/proc/self/mountinfo").ok()?;
    if !mountinfo::parse_mountinfo(&text).ok()?.iter().any(|mount| mount.mount_point == path) {
        return None;
    }
    let own = rustix::process::geteuid().as_raw();
    let mut entries = std::fs::read_dir(path).ok()?.filter_map(Result::ok);
    let is_foreign = |meta: std::fs::Metadata| meta.uid() != own;
    entries
        .any(|entry| entry.metadata().is_ok_and(is_foreign))
        .then_some("a mount point with files of other users")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 3.5.1
    #[test]
    fn directories_of_users_and_of_the_system_are_refused() {
        for path in [
            "/",
            "/tmp",
            "/var/tmp",
            "/dev/shm",
            "/root",
            "/home",
            "/home/anna",
            "/run",
            "/run/user",
            "/run/user/1000",
            "/run/penfold",
            "/run/user/1000/penfold",
            "/tmp/penfold-1000",
            "/dev/shm/penfold-0",
            "/usr",
            "/usr/local/x",
            "/etc/x",
            "/proc/1",
            "/var",
            "/dev",
        ] {
            assert!(by_path(Path::new(path)).is_some(), "{path}");
        }
        for path in [
            "/tmp/x",
            "/home/anna/x",
            "/root/x",
            "/var/tmp/x",
            "/run/user/1000/x",
            "/srv/ci",
            "/work",
            "/tmp/penfold-x",
        ] {
            assert_eq!(by_path(Path::new(path)), None, "{path}");
        }
    }
}
