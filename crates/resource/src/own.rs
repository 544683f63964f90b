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
use crate::error::{Error, failed};
use crate::links::View;
use crate::netlink::Socket;
use crate::netns::{NAMES, await_end, holders_of, named, unname};
use crate::owner::Owner;
use crate::presence::Presence;
use crate::{clear, directory, holders, mount_table, nft, nsid};

/// Something that the command may make, and that is removed after its end.
///
/// Nothing of the name exists before the start ([`Planned::check`](crate::Planned::check)), so whatever has the name
/// later is the command's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "of", content = "name", rename_all = "kebab-case")]
pub enum Own {
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

impl Own {
    pub(crate) fn describe(&self) -> String {
        match self {
            Own::Path(path) => format!("`{}`", path.display()),
            Own::Netns(name) => format!("network namespace `{name}`"),
            Own::Link(name) => format!("link `{name}`"),
            Own::Mount(point) => format!("mount `{}`", point.display()),
            Own::Loop(file) => format!("loop device of `{}`", file.display()),
            Own::Nft { family, table } => format!("nft table `{family} {table}`"),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.exists()? { Err(Error::Taken { resource: self.describe() }) } else { Ok(()) }
    }

    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as every kind; the command makes it")]
    pub(crate) fn create(&self, _owner: &Owner) -> Result<(), Error> {
        Ok(())
    }

    pub(crate) fn probe(&self, owner: &Owner) -> Result<Presence, Error> {
        if self.exists()? || self.is_unnamed(owner)? {
            Ok(Presence::Ours { held_by: self.held_by(owner) })
        } else {
            Ok(Presence::Absent)
        }
    }

    pub(crate) fn release(&self, owner: &Owner, until: Instant) -> Result<(), Error> {
        match self {
            Own::Path(path) => return self.release_path(path, until),
            Own::Netns(name) => return self.release_netns(name, owner, until),
            _ => {}
        }
        let mut pauses = Pauses::until(until);
        while self.exists()? {
            let result = self.remove();
            if self.exists()? && !pauses.pause() {
                result?;
                return Err(Error::Held { resource: self.describe(), held_by: self.held_by(owner) });
            }
        }
        Ok(())
    }

    fn exists(&self) -> Result<bool, Error> {
        let look = || format!("look for {}", self.describe());
        match self {
            Own::Path(path) => is_there(path).map_err(failed(look)),
            Own::Netns(name) => is_there(&Path::new(NAMES).join(name)).map_err(failed(look)),
            Own::Link(name) => {
                let socket = Socket::open().map_err(failed(look))?;
                let found = View { socket: &socket, nsid: None }.find(name).map_err(failed(look))?;
                Ok(found.is_some())
            }
            Own::Mount(point) => Ok(!mounts_on(point).map_err(failed(look))?.is_empty()),
            Own::Loop(file) => Ok(!loops_of(file).map_err(failed(look))?.is_empty()),
            Own::Nft { family, table } => nft::exists(family, table),
        }
    }

    /// Removes a link, a mount, loop devices or a table.
    fn remove(&self) -> Result<(), Error> {
        let attempt = || format!("remove {}", self.describe());
        match self {
            Own::Path(_) | Own::Netns(_) => Ok(()),
            Own::Link(name) => Socket::open()
                .and_then(|socket| {
                    let view = View { socket: &socket, nsid: None };
                    view.find(name)?.map_or(Ok(()), |link| view.delete(link.index))
                })
                .map_err(failed(attempt)),
            Own::Mount(point) => unmount(point).map_err(failed(attempt)),
            Own::Loop(file) => clear_loops(file).map_err(failed(attempt)),
            Own::Nft { family, table } => nft::delete(family, table),
        }
    }

    fn held_by(&self, owner: &Owner) -> Vec<String> {
        match self {
            Own::Path(path) => holders::of_directory(path),
            Own::Mount(point) => holders::of_mounts(&mounts_on(point).unwrap_or_default()),
            Own::Loop(file) => loops_of(file)
                .unwrap_or_default()
                .iter()
                .flat_map(|device| {
                    let device_file = Path::new("/dev").join(device);
                    let mounted = mount_table::read().unwrap_or_default().into_iter();
                    let mounted = mounted.filter(|mount| mount.source == device_file);
                    let mounts = mounted.map(|mount| format!("the mount `{}`", mount.mount_point.display()));
                    mounts.chain(holders::of_directory(&device_file)).collect::<Vec<_>>()
                })
                .collect(),
            Own::Netns(name) => {
                let Ok(home) = Socket::open() else { return Vec::new() };
                let number = number_of(name, &home, owner).unwrap_or_else(|_| owner.number(name));
                holders_of(&home, number)
            }
            Own::Link(_) | Own::Nft { .. } => Vec::new(),
        }
    }

    fn release_path(&self, path: &Path, until: Instant) -> Result<(), Error> {
        let attempt = || format!("remove {}", self.describe());
        let mut pauses = Pauses::until(until);
        loop {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::open(path, flags, Mode::empty()) {
                Ok(dir) => {
                    mount_table::detach_at(path).map_err(failed(attempt))?;
                    // The descriptor may be that of a mount that was just detached.
                    drop(dir);
                    match rustix::fs::open(path, flags, Mode::empty()) {
                        Ok(dir) => directory::remove(path, dir.as_fd(), until)?,
                        Err(Errno::NOENT) => {}
                        Err(errno) => return Err(failed(attempt)(errno)),
                    }
                }
                Err(Errno::NOENT) => return Ok(()),
                Err(_) => {
                    mount_table::detach_at(path).map_err(failed(attempt))?;
                    remove_file(path).map_err(failed(attempt))?;
                }
            }
            // The directory may have been moved away, and something else may have its name.
            if !is_there(path).map_err(failed(attempt))? {
                return Ok(());
            }
            if !pauses.pause() {
                return Err(Error::Held { resource: self.describe(), held_by: holders::of_directory(path) });
            }
        }
    }

    /// The namespace gets a number first, if it has none, by which its end is seen.
    fn release_netns(&self, name: &str, owner: &Owner, until: Instant) -> Result<(), Error> {
        let attempt = || format!("remove {}", self.describe());
        let home = Socket::open().map_err(failed(attempt))?;
        let number = number_of(name, &home, owner).map_err(failed(attempt))?;
        unname(&Path::new(NAMES).join(name)).map_err(failed(attempt))?;
        await_end(&home, number, until, &self.describe())
    }

    /// Tells whether a network namespace lives that an earlier release has taken its name from.
    fn is_unnamed(&self, owner: &Owner) -> Result<bool, Error> {
        let Own::Netns(name) = self else { return Ok(false) };
        let look = || format!("look for {}", self.describe());
        let home = Socket::open().map_err(failed(look))?;
        nsid::is_known(&home, owner.number(name)).map_err(failed(look))
    }
}

/// Returns the number of a namespace that the command has made; the same at each release, unless the kernel had chosen
/// one before.
fn number_of(name: &str, home: &Socket, owner: &Owner) -> io::Result<i32> {
    let number = owner.number(name);
    let Some(namespace) = named(&Path::new(NAMES).join(name))? else { return Ok(number) };
    if let Some(known) = nsid::of(home, namespace.as_fd())? {
        return Ok(known);
    }
    nsid::assign(home, namespace.as_fd(), number)?;
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
    let table = mount_table::read()?;
    let bases = table.iter().filter(|mount| mount.mount_point == point);
    Ok(bases.flat_map(|base| mount_table::with_children(&table, base.id)).map(|mount| mount.id).collect())
}

fn unmount(point: &Path) -> io::Result<()> {
    let table = mount_table::read()?;
    let Some(base) = table.iter().find(|mount| mount.mount_point == point) else { return Ok(()) };
    for mount in mount_table::with_children(&table, base.id) {
        mount_table::unmount(&mount.mount_point, false)?;
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
