//! The state roots of all users of this host, for root.
//!
//! Each root is read with the rights of its user: whatever a user puts there, the kernel lets penfold open only files
//! that the user could open.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType};
use rustix::process::{Gid, Uid};

use crate::view::{self, SandboxView};

/// The group of a look with the rights of another user: it owns nothing.
const NO_GROUP: u32 = 65534;

/// A state root that penfold uses without `--root`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserRoot {
    /// The user whose sandboxes it has.
    pub user: u32,
    /// The directory.
    pub path: PathBuf,
}

/// Finds the state roots of all users that penfold uses without `--root`, the lowest user first.
///
/// A directory that does not belong to the user in its name, or a link, is no state root.
///
/// # Errors
/// When `/run/user` or `/tmp` cannot be read.
pub fn find_user_roots() -> io::Result<Vec<UserRoot>> {
    let mut roots = vec![UserRoot { user: 0, path: PathBuf::from("/run/penfold") }];
    roots.retain(|root| is_directory_of(&root.path, root.user));
    let bases = [("/run/user", "", "penfold"), ("/tmp", "penfold-", ""), ("/dev/shm", "penfold-", "")];
    for (base, prefix, below) in bases {
        for name in names(Path::new(base))? {
            let Some(user) = name.strip_prefix(prefix).and_then(user) else { continue };
            let top = Path::new(base).join(&name);
            let path = if below.is_empty() { top.clone() } else { top.join(below) };
            if is_directory_of(&top, user) && is_directory_of(&path, user) {
                roots.push(UserRoot { user, path });
            }
        }
    }
    roots.sort_by(|one, other| (one.user, &one.path).cmp(&(other.user, &other.path)));
    Ok(roots)
}

/// Lists the sandboxes of a state root that may have a living member, or `all` of them, with the rights of its user.
///
/// # Errors
/// When this process may not take the rights of the user, or the records cannot be read.
pub fn list_user_sandboxes(root: &UserRoot, all: bool) -> io::Result<Vec<SandboxView>> {
    let _rights = UserRights::of(root.user)?;
    let mut views = view::list_views(&root.path, all)?;
    views.retain(|view| view.claimed);
    Ok(views)
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io::Error::new(error.kind(), format!("`{}`: {error}", dir.display()))),
    };
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}

/// Reads a user number in its only form.
fn user(text: &str) -> Option<u32> {
    text.parse().ok().filter(|user: &u32| user.to_string() == text)
}

/// Tells whether a path is a directory of this user and no link.
fn is_directory_of(path: &Path, user: u32) -> bool {
    rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_uid == user)
}

/// The rights of another user, until this value is dropped. The real and the saved user stay root, so the other user may
/// neither signal nor trace this process.
#[derive(Debug)]
struct UserRights {
    groups: Vec<Gid>,
    group: Gid,
}

impl UserRights {
    fn of(user: u32) -> io::Result<Option<UserRights>> {
        if user == 0 {
            return Ok(None);
        }
        let former = UserRights { groups: rustix::process::getgroups()?, group: rustix::process::getegid() };
        // Each step needs the rights that the next one gives up.
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(None, Some(Gid::from_raw(NO_GROUP)), None)?;
        rustix::thread::set_thread_res_uid(None, Some(Uid::from_raw(user)), None)?;
        Ok(Some(former))
    }
}

impl Drop for UserRights {
    fn drop(&mut self) {
        // If a step fails, this process goes on with fewer rights.
        let _ = rustix::thread::set_thread_res_uid(None, Some(Uid::ROOT), None);
        let _ = rustix::thread::set_thread_res_gid(None, Some(self.group), None);
        let _ = rustix::thread::set_thread_groups(&self.groups);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_number_has_one_form() {
        assert_eq!(user("1000"), Some(1000));
        for text in ["", "01000", "+1000", "-1", "4294967296", "penfold", "1000 "] {
            assert_eq!(user(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_link_is_no_directory_of_a_user() {
        let base = tempfile::tempdir().unwrap();
        let own = rustix::process::geteuid().as_raw();
        std::os::unix::fs::symlink(base.path(), base.path().join("link")).unwrap();
        assert!(is_directory_of(base.path(), own));
        assert!(!is_directory_of(base.path(), own + 1));
        assert!(!is_directory_of(&base.path().join("link"), own));
    }
}
