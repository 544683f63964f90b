//! What the command makes itself, under a name that was free before the start.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::deadline::Pauses;
use crate::error::{ResourceError, failed_step};
use crate::links::NamespaceView;
use crate::netlink::NetlinkSocket;
use crate::netns::{NAMES, await_end, holders_of, open_named_netns, remove_netns_name};
use crate::owner::ResourceOwner;
use crate::presence::ResourcePresence;
use crate::{clear, directory, holders, mount_table, nft, nsid};

/// Something that the command may make, and that is removed after its end.
///
/// Nothing of the name exists before the start ([`PlannedResource::check`](crate::PlannedResource::check)), so whatever has the name
/// later is the command's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "of", content = "name", rename_all = "kebab-case")]
pub enum OwnResource {
    /// A file or directory.
    #[serde(with = "penfold_process::path_text")]
    Path(PathBuf),
    /// A network namespace under `/run/netns`.
    Netns(String),
    /// A link in the caller's network namespace.
    Link(String),
    /// A mount point in the caller's mount namespace.
    #[serde(with = "penfold_process::path_text")]
    Mount(PathBuf),
    /// The loop devices with this backing file.
    #[serde(with = "penfold_process::path_text")]
    Loop(PathBuf),
    /// A table of nftables.
    Nft {
        /// The family, such as `inet`.
        family: String,
        /// The name.
        table: String,
    },
}

impl OwnResource {
    pub(crate) fn describe(&self) -> String {
        match self {
            OwnResource::Path(path) => format!("`{}`", path.display()),
            OwnResource::Netns(name) => format!("network namespace `{name}`"),
            OwnResource::Link(name) => format!("link `{name}`"),
            OwnResource::Mount(point) => format!("mount `{}`", point.display()),
            OwnResource::Loop(file) => format!("loop device of `{}`", file.display()),
            OwnResource::Nft { family, table } => format!("nft table `{family} {table}`"),
        }
    }

    pub(crate) fn check(&self) -> Result<(), ResourceError> {
        if self.exists()? { Err(ResourceError::Taken { resource: self.describe() }) } else { Ok(()) }
    }

    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as every kind; the command makes it")]
    pub(crate) fn create(&self, _owner: &ResourceOwner) -> Result<(), ResourceError> {
        Ok(())
    }

    pub(crate) fn probe(&self, owner: &ResourceOwner) -> Result<ResourcePresence, ResourceError> {
        if self.exists()? || self.is_unnamed(owner)? {
            Ok(ResourcePresence::Ours { held_by: self.held_by(owner) })
        } else {
            Ok(ResourcePresence::Absent)
        }
    }

    pub(crate) fn release(&self, owner: &ResourceOwner, until: Instant) -> Result<(), ResourceError> {
        match self {
            OwnResource::Path(path) => return self.release_path(path, until),
            OwnResource::Netns(name) => return self.release_netns(name, owner, until),
            _ => {}
        }
        let mut pauses = Pauses::until(until);
        while self.exists()? {
            let result = self.remove();
            if self.exists()? && !pauses.pause() {
                result?;
                return Err(ResourceError::Held { resource: self.describe(), held_by: self.held_by(owner) });
            }
        }
        Ok(())
    }

    fn exists(&self) -> Result<bool, ResourceError> {
        let look = || format!("look for {}", self.describe());
        match self {
            OwnResource::Path(path) => is_there(path).map_err(failed_step(look)),
            OwnResource::Netns(name) => is_there(&Path::new(NAMES).join(name)).map_err(failed_step(look)),
            OwnResource::Link(name) => {
                let socket = NetlinkSocket::open().map_err(failed_step(look))?;
                let found =
                    NamespaceView { socket: &socket, nsid: None }.find(name).map_err(failed_step(look))?;
                Ok(found.is_some())
            }
            OwnResource::Mount(point) => Ok(!mounts_on(point).map_err(failed_step(look))?.is_empty()),
            OwnResource::Loop(file) => Ok(!loops_of(file).map_err(failed_step(look))?.is_empty()),
            OwnResource::Nft { family, table } => nft::table_exists(family, table),
        }
    }

    /// Removes a link, a mount, loop devices or a table.
    fn remove(&self) -> Result<(), ResourceError> {
        let attempt = || format!("remove {}", self.describe());
        match self {
            OwnResource::Path(_) | OwnResource::Netns(_) => Ok(()),
            OwnResource::Link(name) => NetlinkSocket::open()
                .and_then(|socket| {
                    let view = NamespaceView { socket: &socket, nsid: None };
                    view.find(name)?.map_or(Ok(()), |link| view.delete(link.index))
                })
                .map_err(failed_step(attempt)),
            OwnResource::Mount(point) => unmount(point).map_err(failed_step(attempt)),
            OwnResource::Loop(file) => clear_loops(file).map_err(failed_step(attempt)),
            OwnResource::Nft { family, table } => nft::delete_table(family, table),
        }
    }

    fn held_by(&self, owner: &ResourceOwner) -> Vec<String> {
        match self {
            OwnResource::Path(path) => holders::of_directory(path),
            OwnResource::Mount(point) => holders::of_mounts(&mounts_on(point).unwrap_or_default()),
            OwnResource::Loop(file) => loops_of(file)
                .unwrap_or_default()
                .iter()
                .flat_map(|device| {
                    let device_file = Path::new("/dev").join(device);
                    let mounted = mount_table::read_mount_table().unwrap_or_default().into_iter();
                    let mounted = mounted.filter(|mount| mount.source == device_file);
                    let mounts = mounted.map(|mount| format!("the mount `{}`", mount.mount_point.display()));
                    mounts.chain(holders::of_directory(&device_file)).collect::<Vec<_>>()
                })
                .collect(),
            OwnResource::Netns(name) => {
                let Ok(home) = NetlinkSocket::open() else { return Vec::new() };
                let number = number_of(name, &home, owner).unwrap_or_else(|_| owner.number(name));
                holders_of(&home, number)
            }
            OwnResource::Link(_) | OwnResource::Nft { .. } => Vec::new(),
        }
    }

    fn release_path(&self, path: &Path, until: Instant) -> Result<(), ResourceError> {
        let attempt = || format!("remove {}", self.describe());
        let mut pauses = Pauses::until(until);
        loop {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::open(path, flags, Mode::empty()) {
                Ok(dir) => {
                    mount_table::detach_at(path).map_err(failed_step(attempt))?;
                    // The descriptor may be that of a mount that was just detached.
                    drop(dir);
                    match rustix::fs::open(path, flags, Mode::empty()) {
                        Ok(dir) => directory::remove_directory(path, dir.as_fd(), until)?,
                        Err(Errno::NOENT) => {}
                        Err(errno) => return Err(failed_step(attempt)(errno)),
                    }
                }
                Err(Errno::NOENT) => return Ok(()),
                Err(_) => {
                    mount_table::detach_at(path).map_err(failed_step(attempt))?;
                    remove_file(path).map_err(failed_step(attempt))?;
                }
            }
            // The directory may have been moved away, and something else may have its name.
            if !is_there(path).map_err(failed_step(attempt))? {
                return Ok(());
            }
            if !pauses.pause() {
                return Err(ResourceError::Held {
                    resource: self.describe(),
                    held_by: holders::of_directory(path),
                });
            }
        }
    }

    /// The namespace gets a number first, if it has none, by which its end is seen.
    fn release_netns(&self, name: &str, owner: &ResourceOwner, until: Instant) -> Result<(), ResourceError> {
        let attempt = || format!("remove {}", self.describe());
        let home = NetlinkSocket::open().map_err(failed_step(attempt))?;
        let number = number_of(name, &home, owner).map_err(failed_step(attempt))?;
        remove_netns_name(&Path::new(NAMES).join(name)).map_err(failed_step(attempt))?;
        await_end(&home, number, until, &self.describe())
    }

    /// Tells whether a network namespace lives that an earlier release has taken its name from.
    fn is_unnamed(&self, owner: &ResourceOwner) -> Result<bool, ResourceError> {
        let OwnResource::Netns(name) = self else { return Ok(false) };
        let look = || format!("look for {}", self.describe());
        let home = NetlinkSocket::open().map_err(failed_step(look))?;
        nsid::is_known(&home, owner.number(name)).map_err(failed_step(look))
    }
}

/// Returns the number of a namespace that the command has made; the same at each release, unless the kernel had chosen
/// one before.
fn number_of(name: &str, home: &NetlinkSocket, owner: &ResourceOwner) -> io::Result<i32> {
    let number = owner.number(name);
    let Some(namespace) = open_named_netns(&Path::new(NAMES).join(name))? else { return Ok(number) };
    if let Some(known) = nsid::read_nsid(home, namespace.as_fd())? {
        return Ok(known);
    }
    nsid::assign_nsid(home, namespace.as_fd(), number)?;
    Ok(number)
}

fn is_there(path: &Path) -> io::Result<bool> {
    match rustix::fs::lstat(path) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match rustix::fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::PERM) => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
            clear::unflag_open(file.as_fd());
            Ok(rustix::fs::unlink(path)?)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the ids of all mounts on a mount point and below.
fn mounts_on(point: &Path) -> io::Result<Vec<u32>> {
    let table = mount_table::read_mount_table()?;
    let bases = table.iter().filter(|mount| mount.mount_point == point);
    Ok(bases.flat_map(|base| mount_table::with_children(&table, base.id)).map(|mount| mount.id).collect())
}

fn unmount(point: &Path) -> io::Result<()> {
    let table = mount_table::read_mount_table()?;
    let Some(base) = table.iter().find(|mount| mount.mount_point == point) else { return Ok(()) };
    for mount in mount_table::with_children(&table, base.id) {
        mount_table::unmount_point(&mount.mount_point, false)?;
    }
    Ok(())
}

/// Returns the names of the loop devices with this backing file.
fn loops_of(file: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/sys/block")? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if backing_file(&name).is_some_and(|(backing, _)| backing == file) {
            found.push(name);
        }
    }
    Ok(found)
}

/// Returns the backing file of a loop device, and whether it is deleted; `None` if the device is free or no loop device.
pub(crate) fn backing_file(device: &str) -> Option<(PathBuf, bool)> {
    let text = std::fs::read(Path::new("/sys/block").join(device).join("loop/backing_file")).ok()?;
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    let kept = text.strip_suffix(b" (deleted)");
    Some((PathBuf::from(OsStr::from_bytes(kept.unwrap_or(text))), kept.is_some()))
}

fn clear_loops(file: &Path) -> io::Result<()> {
    for name in loops_of(file)? {
        let path = Path::new("/dev").join(name);
        let device = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        match penfold_sys::device::loop_clear(device.as_fd()) {
            Err(error) if Errno::from_io_error(&error) != Some(Errno::NXIO) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
