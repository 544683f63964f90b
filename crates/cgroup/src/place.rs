//! The place: the cgroup2 directory in which leaves are created.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags};
use rustix::io::Errno;

use crate::dir;
use crate::membership::Membership;
use crate::mountinfo::{self, MountEntry};

/// The reason why no leaf can be created.
#[derive(Debug, thiserror::Error)]
pub enum NoPlace {
    /// No cgroup2 file system is mounted.
    #[error("no cgroup2 file system is mounted")]
    NotMounted,
    /// This process is in no cgroup2 hierarchy (`cgroup_no_v1` or a stripped kernel).
    #[error("this process is in no cgroup2 hierarchy")]
    NotMember,
    /// The file system is mounted read-only, as in containers without privileges.
    #[error("the cgroup2 file system on `{mount_point}` is mounted read-only")]
    ReadOnly {
        /// The mount point.
        mount_point: PathBuf,
    },
    /// The caller's own cgroup is not below the root of any cgroup2 mount.
    #[error("the own cgroup `{cgroup}` is not visible below the cgroup2 mount on `{mount_point}`")]
    Outside {
        /// The own cgroup, as `/proc/self/cgroup` shows it.
        cgroup: String,
        /// The mount point of the file system.
        mount_point: PathBuf,
    },
    /// The own cgroup is not delegated: the caller may not create cgroups in it or move processes out of it.
    #[error(
        "the own cgroup `{path}` is not delegated to this user: no write access to it and its `cgroup.procs`"
    )]
    NotWritable {
        /// The directory of the cgroup.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The own cgroup is threaded: cgroups below it are threaded too, and hold threads, not processes.
    #[error("the own cgroup `{path}` is threaded, so that no process can be moved below it")]
    Threaded {
        /// The directory of the cgroup.
        path: PathBuf,
    },
    /// Another file system is mounted over the cgroup.
    #[error("`{path}` is not a directory of a cgroup2 file system")]
    NotCgroup2 {
        /// The directory where the cgroup should be.
        path: PathBuf,
    },
    /// The cgroup could not be examined.
    #[error("cannot open `{path}`")]
    Io {
        /// The file or directory that could not be examined.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The kernel's list of mounts has an unknown format.
    #[error("cannot read the list of mounts")]
    Mountinfo(#[from] mountinfo::ParseError),
}

/// The caller's own cgroup, derived from text without touching the file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerCgroup {
    /// The directory of the cgroup.
    pub path: PathBuf,
    /// The cgroup, as `/proc/<pid>/cgroup` shows it.
    pub cgroup: String,
}

/// A cgroup2 directory in which leaves may be created.
#[derive(Debug)]
pub struct LeafPlace {
    dir: OwnedFd,
    path: PathBuf,
    cgroup: String,
}

impl LeafPlace {
    /// Finds the own cgroup in the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`, without touching the
    /// directory.
    ///
    /// Of the mounts that contain the cgroup, the last one wins, because later mounts cover earlier ones.
    pub fn locate(mountinfo: &[u8], self_cgroup: &[u8]) -> Result<CallerCgroup, NoPlace> {
        let mut why = None;
        let found = candidates(mountinfo, self_cgroup)?.find_map(|candidate| match candidate {
            Ok(located) => Some(located),
            Err(reason) => {
                why.get_or_insert(reason);
                None
            }
        });
        found.ok_or_else(|| why.unwrap_or(NoPlace::NotMounted))
    }

    /// Finds the own cgroup and checks that leaves can be created in it.
    ///
    /// # Errors
    /// With several cgroup2 mounts of which none is usable, the reason is that of the last one.
    pub fn find(mountinfo: &[u8], self_cgroup: &[u8]) -> Result<Self, NoPlace> {
        let mut why = None;
        for candidate in candidates(mountinfo, self_cgroup)? {
            match candidate.and_then(Self::open) {
                Ok(place) => return Ok(place),
                Err(reason) => {
                    why.get_or_insert(reason);
                }
            }
        }
        Err(why.unwrap_or(NoPlace::NotMounted))
    }

    /// Finds the own cgroup of this process, like [`LeafPlace::find`].
    ///
    /// If the whole hierarchy is mounted at the usual mount point, the list of mounts is not read. The kernel needs
    /// longer for that list than for all the rest: a millisecond on a host with hundreds of mounts.
    pub fn find_here() -> Result<Self, NoPlace> {
        let own = read_proc(c"/proc/self/cgroup")?;
        match in_usual_spot(&own).map(Self::open) {
            Some(Ok(place)) => Ok(place),
            // Another mount may be better, or give a better reason.
            _ => Self::find(&read_proc(c"/proc/self/mountinfo")?, &own),
        }
    }

    /// Opens any cgroup2 directory by its absolute path, and checks that leaves can be created in it.
    ///
    /// To move a process there, a user must be able to write the `cgroup.procs` of the nearest common ancestor of both
    /// cgroups, cgroups(7).
    pub fn at(path: &Path) -> Result<Self, NoPlace> {
        let mountinfo = read_proc(c"/proc/self/mountinfo")?;
        Self::open(CallerCgroup { path: path.to_owned(), cgroup: cgroup_at(&mountinfo, path)? })
    }

    /// Returns the directory of the place.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the cgroup as `/proc/<pid>/cgroup` shows it.
    pub fn cgroup(&self) -> &str {
        &self.cgroup
    }

    /// Returns the open directory.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Takes any directory as a place.
    #[cfg(test)]
    pub(crate) fn fake(path: &Path) -> Self {
        let dir = dir::open_absolute(path).expect("a directory");
        Self { dir, path: path.to_owned(), cgroup: "/fake".to_owned() }
    }

    pub(crate) fn open(CallerCgroup { path, cgroup }: CallerCgroup) -> Result<Self, NoPlace> {
        let dir = match dir::open_absolute(&path) {
            Ok(dir) => dir,
            Err(errno) => return Err(NoPlace::Io { path, source: errno.into() }),
        };
        match check(dir.as_fd()) {
            Ok(PlaceCheck::Good) => Ok(Self { dir, path, cgroup }),
            Ok(PlaceCheck::NotCgroup2) => Err(NoPlace::NotCgroup2 { path }),
            Ok(PlaceCheck::Threaded) => Err(NoPlace::Threaded { path }),
            Ok(PlaceCheck::Denied(Errno::ROFS)) => Err(NoPlace::ReadOnly { mount_point: path }),
            Ok(PlaceCheck::Denied(errno)) => Err(NoPlace::NotWritable { path, source: errno.into() }),
            Err(errno) => Err(NoPlace::Io { path, source: errno.into() }),
        }
    }
}

/// `PROC_CGROUP_INIT_INO`, `include/linux/proc_ns.h`: the inode of the initial cgroup namespace.
const INIT_CGROUP_NAMESPACE: u64 = 0xEFFF_FFFB;

/// The inode of the root of a cgroup hierarchy, `kernfs_create_root`.
const ROOT_INODE: u64 = 1;

/// Finds the own cgroup without the list of mounts, if the result is certain.
///
/// That is so in the initial cgroup namespace, if the mount shows the root of the hierarchy: paths begin at that root.
fn in_usual_spot(self_cgroup: &[u8]) -> Option<CallerCgroup> {
    if rustix::fs::stat(c"/proc/self/ns/cgroup").ok()?.st_ino != INIT_CGROUP_NAMESPACE {
        return None;
    }
    let own = std::str::from_utf8(Membership::of(self_cgroup).unified()?).ok()?;
    // Hybrid hosts have a tmpfs at the first mount point.
    let mount_point = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].into_iter().find(|spot| {
        rustix::fs::statfs(*spot).is_ok_and(|fs| dir::is_cgroup2_type(fs.f_type))
            && rustix::fs::stat(*spot).is_ok_and(|root| root.st_ino == ROOT_INODE)
    })?;
    Some(CallerCgroup {
        path: below_mount(mount_point.into(), own.strip_prefix('/')?),
        cgroup: own.to_owned(),
    })
}

fn below_mount(mount_point: PathBuf, rest: impl AsRef<Path>) -> PathBuf {
    // Joining an empty path would leave a slash at the end.
    if rest.as_ref().as_os_str().is_empty() { mount_point } else { mount_point.join(rest) }
}

fn read_proc(path: &CStr) -> Result<Vec<u8>, NoPlace> {
    dir::read_proc(path).map_err(|errno| NoPlace::Io {
        path: PathBuf::from(path.to_string_lossy().as_ref()),
        source: errno.into(),
    })
}

enum PlaceCheck {
    Good,
    NotCgroup2,
    Denied(Errno),
    Threaded,
}

fn check(dir: BorrowedFd<'_>) -> Result<PlaceCheck, Errno> {
    if !dir::is_cgroup2(dir)? {
        return Ok(PlaceCheck::NotCgroup2);
    }
    for name in [c".", c"cgroup.procs"] {
        match writable(dir, name) {
            Ok(()) => {}
            Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => return Ok(PlaceCheck::Denied(errno)),
            Err(errno) => return Err(errno),
        }
    }
    let mut text = [0; 32];
    match dir::read_short(dir, c"cgroup.type", &mut text) {
        // The type "domain threaded" is a domain too, but a cgroup created in it starts out invalid.
        Ok(text) if text.starts_with(b"domain\n") => Ok(PlaceCheck::Good),
        Ok(_) => Ok(PlaceCheck::Threaded),
        // The root of the hierarchy has no type, and cgroups on kernels before 4.14 have none.
        Err(Errno::NOENT) => Ok(PlaceCheck::Good),
        Err(errno) => Err(errno),
    }
}

fn writable(dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    match rustix::fs::accessat(dir, name, Access::WRITE_OK, AtFlags::EACCESS) {
        // faccessat2(2) exists since Linux 5.8. Real and effective ids differ only in set-uid programs.
        Err(Errno::NOSYS) => rustix::fs::accessat(dir, name, Access::WRITE_OK, AtFlags::empty()),
        other => other,
    }
}

/// Returns one place or one reason for each cgroup2 mount, the last mount first.
fn candidates(
    mountinfo: &[u8],
    self_cgroup: &[u8],
) -> Result<impl Iterator<Item = Result<CallerCgroup, NoPlace>>, NoPlace> {
    let mounts: Vec<MountEntry> =
        mountinfo::of_type(mountinfo, b"cgroup2").collect::<Result<_, mountinfo::ParseError>>()?;
    if mounts.is_empty() {
        return Err(NoPlace::NotMounted);
    }
    let own = Membership::of(self_cgroup).unified().ok_or(NoPlace::NotMember)?;
    let own = String::from_utf8_lossy(own).into_owned();
    Ok(mounts.into_iter().rev().map(move |mount| below(mount, &own)))
}

fn below(mount: MountEntry, cgroup: &str) -> Result<CallerCgroup, NoPlace> {
    // From inside a namespace, roots look like `/..`: such paths say where a cgroup is, but do not lead to it.
    let hidden = Path::new(cgroup).components().any(|part| part == std::path::Component::ParentDir);
    // After a loss, a name that is not UTF-8 could not be told from other names.
    let Some(rest) = Path::new(cgroup)
        .strip_prefix(&mount.root)
        .ok()
        .filter(|_| !hidden && !cgroup.contains(char::REPLACEMENT_CHARACTER))
    else {
        return Err(NoPlace::Outside { cgroup: cgroup.to_owned(), mount_point: mount.mount_point });
    };
    if mount.has_option("ro") {
        return Err(NoPlace::ReadOnly { mount_point: mount.mount_point });
    }
    let path = below_mount(mount.mount_point, rest);
    Ok(CallerCgroup { path, cgroup: cgroup.to_owned() })
}

/// Returns the cgroup of a directory, as `/proc/<pid>/cgroup` would show it.
pub(crate) fn cgroup_at(mountinfo: &[u8], path: &Path) -> Result<String, NoPlace> {
    let mut best: Option<(usize, PathBuf)> = None;
    for mount in mountinfo::of_type(mountinfo, b"cgroup2") {
        let mount = mount?;
        let Ok(rest) = path.strip_prefix(&mount.mount_point) else {
            continue;
        };
        let length = mount.mount_point.as_os_str().len();
        // A path leads to the innermost mount, and of two mounts at one mount point to the later.
        if best.as_ref().is_none_or(|&(longest, _)| length >= longest) {
            let below = below_mount(mount.root, rest);
            best = Some((length, below));
        }
    }
    let (_, cgroup) = best.ok_or_else(|| NoPlace::NotCgroup2 { path: path.to_owned() })?;
    cgroup.into_os_string().into_string().map_err(|_| NoPlace::NotCgroup2 { path: path.to_owned() })
}
