//! The accounts of a jail with a user of its own: the texts of passwd(5) and group(5), the home, the shell.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};

/// The user id and the group id.
pub(super) const ID: u32 = 1000;
/// The directory of homes.
pub(super) const HOMES: &str = "/home";
/// Shells, the better first. A root without any has programs of its own.
const SHELLS: [&str; 2] = ["/bin/bash", "/bin/sh"];
/// The texts where a root has none.
const NO_USERS: &[u8] = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";
const NO_GROUPS: &[u8] = b"root:x:0:\nnogroup:x:65534:\n";
/// The largest text that counts.
const MAX_BYTES: u64 = 16 << 20;

/// The texts of the files in `/etc`.
#[derive(Debug, PartialEq, Eq)]
pub struct Accounts {
    /// `/etc/passwd`.
    pub passwd: Vec<u8>,
    /// `/etc/group`.
    pub group: Vec<u8>,
}

impl Accounts {
    /// Adds a user to the accounts below a root directory. Others of its name or its number are left out.
    #[must_use]
    pub fn of(root: &Path, name: &str) -> Accounts {
        let old = |path| read(root, path).ok();
        let home = home(name);
        let user = format!("{name}:x:{ID}:{ID}::{}:{}\n", home.display(), shell(root));
        let users = old("etc/passwd").unwrap_or_else(|| NO_USERS.to_vec());
        let groups = without_member(&old("etc/group").unwrap_or_else(|| NO_GROUPS.to_vec()), name);
        Accounts {
            passwd: with_entry(&users, name, &user),
            group: with_entry(&groups, name, &format!("{name}:x:{ID}:\n")),
        }
    }
}

/// Returns the home of a user.
#[must_use]
pub fn home(name: &str) -> PathBuf {
    Path::new(HOMES).join(name)
}

/// Returns the shell of a user below a root directory.
#[must_use]
pub fn shell(root: &Path) -> &'static str {
    let [best, other] = SHELLS;
    let found = open(root, best.trim_start_matches('/'), OFlags::PATH);
    let stat = found.and_then(|file| Ok(rustix::fs::fstat(&file)?));
    let is_program = stat.is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_mode & 0o111 != 0
    });
    if is_program { best } else { other }
}

/// Opens a file below a root directory, whose links lead nowhere else.
fn open(root: &Path, path: &str, flags: OFlags) -> io::Result<File> {
    let root = rustix::fs::openat(CWD, root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let flags = flags | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?.into())
}

fn read(root: &Path, path: &str) -> io::Result<Vec<u8>> {
    let file = open(root, path, OFlags::RDONLY | OFlags::NONBLOCK)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty())
}

/// Leaves out the entries with this name or the number of the user, and adds one.
fn with_entry(text: &[u8], name: &str, entry: &str) -> Vec<u8> {
    let mut all = Vec::new();
    for line in lines(text) {
        let mut fields = line.split(|&byte| byte == b':');
        let has_name = fields.next() == Some(name.as_bytes());
        let id = fields.nth(1).and_then(|id| std::str::from_utf8(id).ok()?.parse().ok());
        if !has_name && id != Some(ID) {
            all.extend_from_slice(line);
            all.push(b'\n');
        }
    }
    all.extend_from_slice(entry.as_bytes());
    all
}

/// Leaves a name out of the members of all groups: they are those of another user.
fn without_member(text: &[u8], name: &str) -> Vec<u8> {
    let mut all = Vec::new();
    for line in lines(text) {
        let end = line.iter().rposition(|&byte| byte == b':').map_or(0, |colon| colon + 1);
        let (group, members) = line.split_at(end);
        let others: Vec<&[u8]> =
            members.split(|&byte| byte == b',').filter(|&member| member != name.as_bytes()).collect();
        all.extend_from_slice(group);
        all.extend_from_slice(&others.join(&b','));
        all.push(b'\n');
    }
    all
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        root
    }

    fn texts(root: &Path, name: &str) -> (String, String) {
        let Accounts { passwd, group } = Accounts::of(root, name);
        (String::from_utf8(passwd).unwrap(), String::from_utf8(group).unwrap())
    }

    /// spec: 19.10
    #[test]
    fn others_of_the_name_or_the_number_are_left_out() {
        let root = root(&[
            (
                "etc/passwd",
                "root:x:0:0:r:/root:/bin/sh\nbob:x:1000:1000::/home/bob:/bin/sh\n\nann:x:7:7::/:/bin/sh\n+::\n\
                 annie:x:10000:1000::/:/bin/sh",
            ),
            ("etc/group", "root:x:0:\nbob:x:1000:\nann:x:7:\nwheel:x:10:bob,ann,annie\nsudo:x:27:ann"),
            ("bin/bash", ""),
        ]);
        let (passwd, group) = texts(root.path(), "ann");
        let user = "ann:x:1000:1000::/home/ann:/bin/bash\n";
        let others = "root:x:0:0:r:/root:/bin/sh\n+::\nannie:x:10000:1000::/:/bin/sh\n";
        assert_eq!(passwd, format!("{others}{user}"));
        assert_eq!(group, "root:x:0:\nwheel:x:10:bob,annie\nsudo:x:27:\nann:x:1000:\n");
    }

    /// spec: 19.10
    #[test]
    fn a_root_without_accounts_gets_few_and_one_without_bash_has_sh() {
        let root = root(&[("bin/sh", "")]);
        let (passwd, group) = texts(root.path(), "ann");
        let few = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";
        assert_eq!(passwd, format!("{few}ann:x:1000:1000::/home/ann:/bin/sh\n"));
        assert_eq!(group, "root:x:0:\nnogroup:x:65534:\nann:x:1000:\n");
    }

    /// spec: 19.10
    #[test]
    fn links_lead_nowhere_outside_of_the_root() {
        let root = root(&[("real/passwd", "here:x:5:5::/:/bin/sh\n"), ("real/bash", "")]);
        std::fs::create_dir(root.path().join("etc")).unwrap();
        symlink("real", root.path().join("bin")).unwrap();
        symlink("/real/passwd", root.path().join("etc/passwd")).unwrap();
        // There is such a file on the host.
        symlink("../../../../../../etc/hostname", root.path().join("etc/group")).unwrap();
        let (passwd, group) = texts(root.path(), "ann");
        assert!(passwd.starts_with("here:") && passwd.ends_with("/bin/bash\n"), "{passwd}");
        assert!(group.starts_with("root:"), "{group}");
    }
}
