//! A network namespace with a name under `/run/netns`, as iproute2 makes it.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;
use serde::{Deserialize, Serialize};

use crate::deadline::Pauses;
use crate::error::{ResourceError, failed_step};
use crate::inside::{NamespaceEntry, enter_namespace, own_namespace, path_of, socket_in};
use crate::netlink::NetlinkSocket;
use crate::owner::ResourceOwner;
use crate::presence::ResourcePresence;
use crate::{copies, holders, links, mount_table, nsid};

/// The time that the kernel usually takes to destroy a namespace that nobody holds.
const PROMPT: Duration = Duration::from_millis(50);
/// The directory of the names.
pub(crate) const NAMES: &str = "/run/netns";

/// A network namespace.
///
/// The namespace has a number in the network namespace in which the sandbox was planned. The kernel forgets the number
/// when the namespace ends, so a release is proved by a question for the number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Netns {
    /// The name, as `ip netns` shows it.
    pub name: String,
    /// The number of the namespace in the home namespace.
    pub nsid: i32,
    /// The inode of the home namespace: that of the planner.
    pub home: u64,
    /// Whether the command runs in the namespace.
    pub enter: bool,
}

impl Netns {
    pub(crate) fn plan(owner: &ResourceOwner, enter: bool) -> Result<Netns, ResourceError> {
        let home =
            own_namespace("net").map_err(failed_step(|| "read the own network namespace".to_owned()))?;
        Ok(Netns { name: owner.name(), nsid: owner.number("net"), home, enter })
    }

    /// Returns the file of the namespace.
    pub fn path(&self) -> PathBuf {
        Path::new(NAMES).join(&self.name)
    }

    pub(crate) fn describe(&self) -> String {
        format!("network namespace `{}`", self.name)
    }

    /// Opens the namespace, which must exist.
    pub(crate) fn open(&self) -> Result<OwnedFd, ResourceError> {
        open(self.path(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed_step(|| format!("open {}", self.describe())))
    }

    pub(crate) fn check(&self) -> Result<(), ResourceError> {
        let looked = |error| failed_step(|| format!("look for {}", self.describe()))(error);
        if rustix::fs::lstat(self.path()).is_ok() {
            return Err(ResourceError::Taken { resource: self.describe() });
        }
        let home = NetlinkSocket::open().map_err(looked)?;
        if nsid::is_known(&home, self.nsid).map_err(looked)? {
            return Err(ResourceError::Taken { resource: format!("network namespace number {}", self.nsid) });
        }
        Ok(())
    }

    pub(crate) fn create(&self, _owner: &ResourceOwner) -> Result<(), ResourceError> {
        let attempt = |step: &str| format!("{step} {}", self.describe());
        prepare_names().map_err(failed_step(|| format!("share `{NAMES}`")))?;
        let inside = enter_namespace(NamespaceEntry::New, false).map_err(failed_step(|| attempt("make")))?;
        links::set_up(&inside.netlink, 1).map_err(failed_step(|| attempt("set up the loopback of")))?;
        penfold_sys::crash_point!("netns-made");
        let home = NetlinkSocket::open().map_err(failed_step(|| attempt("number")))?;
        nsid::assign_nsid(&home, inside.namespace.as_fd(), self.nsid)
            .map_err(failed_step(|| attempt("number")))?;
        penfold_sys::crash_point!("netns-numbered");
        name(&self.path(), inside.namespace.as_fd()).map_err(failed_step(|| attempt("name")))
    }

    pub(crate) fn probe(&self, _owner: &ResourceOwner) -> Result<ResourcePresence, ResourceError> {
        let home = self.home()?;
        if let Some(why) = self.foreign(home.as_ref())? {
            return Ok(ResourcePresence::Foreign { why });
        }
        let lives = match &home {
            Some(home) => self.is_known(home)?,
            None => false,
        };
        if !lives && rustix::fs::lstat(self.path()).is_err() {
            return Ok(ResourcePresence::Absent);
        }
        Ok(ResourcePresence::Ours {
            held_by: home.map(|home| holders_of(&home, self.nsid)).unwrap_or_default(),
        })
    }

    pub(crate) fn release(&self, _owner: &ResourceOwner, until: Instant) -> Result<(), ResourceError> {
        let home = self.home()?;
        if let Some(why) = self.foreign(home.as_ref())? {
            return Err(ResourceError::Foreign { resource: self.describe(), why });
        }
        let Some(home) = home else { return self.release_without_home(until) };
        remove_netns_name(&self.path())
            .map_err(failed_step(|| format!("remove the name of {}", self.describe())))?;
        penfold_sys::crash_point!("netns-unnamed");
        if !ends_by(&home, self.nsid, until.min(Instant::now() + PROMPT), &self.describe())? {
            let path = self.path();
            // Without the privilege for it, the holders are named.
            let _ = copies::unmount_copies(&|mount| mount.fs_type == "nsfs" && mount.mount_point == path);
        }
        await_end(&home, self.nsid, until, &self.describe())
    }

    fn is_known(&self, home: &NetlinkSocket) -> Result<bool, ResourceError> {
        nsid::is_known(home, self.nsid).map_err(failed_step(|| format!("look for {}", self.describe())))
    }

    /// Opens a socket in the home namespace; `None` if no process is left in there.
    fn home(&self) -> Result<Option<NetlinkSocket>, ResourceError> {
        socket_in(self.home).map_err(failed_step(|| {
            format!(
                "enter the network namespace with the inode {} that {} was made in",
                self.home,
                self.describe()
            )
        }))
    }

    /// Returns the evidence that the name belongs to another namespace.
    fn foreign(&self, home: Option<&NetlinkSocket>) -> Result<Option<String>, ResourceError> {
        let look = || format!("look at `{}`", self.path().display());
        let Some(namespace) = open_named_netns(&self.path()).map_err(failed_step(look))? else {
            return Ok(None);
        };
        // Without its home, a namespace has only its name, which nobody else chooses.
        let Some(home) = home else { return Ok(None) };
        let number = nsid::read_nsid(home, namespace.as_fd()).map_err(failed_step(look))?;
        Ok(match number {
            Some(number) if number == self.nsid => None,
            Some(number) => Some(format!("its number is {number} instead of {}", self.nsid)),
            None => Some("it has no number".to_owned()),
        })
    }

    /// Nobody can ask for the number any more: compare the inodes of all that /proc shows.
    fn release_without_home(&self, until: Instant) -> Result<(), ResourceError> {
        let look = || format!("look at `{}`", self.path().display());
        let namespace = open_named_netns(&self.path()).map_err(failed_step(look))?;
        let inode = namespace.as_ref().and_then(|namespace| rustix::fs::fstat(namespace).ok());
        drop(namespace);
        remove_netns_name(&self.path())
            .map_err(failed_step(|| format!("remove the name of {}", self.describe())))?;
        let Some(inode) = inode.map(|stat| stat.st_ino) else { return Ok(()) };
        let mut pauses = Pauses::until(until);
        loop {
            let held_by = holders::of_network(&mut |namespace| {
                rustix::fs::fstat(namespace).is_ok_and(|stat| stat.st_ino == inode)
            });
            if held_by.is_empty() {
                return Ok(());
            }
            if !pauses.pause() {
                return Err(ResourceError::Held { resource: self.describe(), held_by });
            }
        }
    }
}

/// Waits until the kernel has forgotten the number.
pub(crate) fn await_end(
    home: &NetlinkSocket,
    number: i32,
    until: Instant,
    resource: &str,
) -> Result<(), ResourceError> {
    if ends_by(home, number, until, resource)? {
        return Ok(());
    }
    Err(ResourceError::Held { resource: resource.to_owned(), held_by: holders_of(home, number) })
}

/// Tells whether the kernel forgets the number in time.
fn ends_by(home: &NetlinkSocket, number: i32, until: Instant, resource: &str) -> Result<bool, ResourceError> {
    let look = || format!("look for {resource}");
    // The socket is in the namespace of this process, which need not be the home; then only the pauses wake.
    let events =
        NetlinkSocket::open().and_then(|events| events.subscribe(nsid::EVENTS).map(|()| events)).ok();
    let mut pauses = Pauses::until(until);
    while nsid::is_known(home, number).map_err(failed_step(look))? {
        let Some(time) = pauses.next() else { return Ok(false) };
        let watched = events.as_ref().map(|events| PollFd::new(events, PollFlags::IN));
        let _ = poll(&mut watched.into_iter().collect::<Vec<_>>(), Some(&time));
        if let Some(events) = &events {
            events.drain();
        }
    }
    Ok(true)
}

pub(crate) fn holders_of(home: &NetlinkSocket, number: i32) -> Vec<String> {
    holders::of_network(&mut |namespace| {
        nsid::read_nsid(home, namespace.as_fd()).ok().flatten() == Some(number)
    })
}

/// Makes `/run/netns` a shared mount, so that names made here are seen in other mount namespaces, as iproute2 does.
fn prepare_names() -> io::Result<()> {
    match rustix::fs::mkdir(NAMES, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let lock = open(NAMES, flags, Mode::empty())?;
    // iproute2 takes this lock for the same reason: two that bind at once would mount twice.
    let mut pauses = Pauses::until(Instant::now() + Duration::from_secs(10));
    while let Err(errno) = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        if errno != Errno::WOULDBLOCK || !pauses.pause() {
            return Err(errno.into());
        }
    }
    let share =
        || rustix::mount::mount_change(NAMES, MountPropagationFlags::SHARED | MountPropagationFlags::REC);
    match share() {
        Err(Errno::INVAL) => {
            rustix::mount::mount_bind_recursive(NAMES, NAMES)?;
            Ok(share()?)
        }
        other => Ok(other?),
    }
}

/// Gives a namespace a name that must be free.
fn name(path: &Path, namespace: BorrowedFd<'_>) -> io::Result<()> {
    drop(open(path, OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty())?);
    penfold_sys::crash_point!("netns-file-made");
    let mounted = rustix::mount::mount_bind(path_of(namespace).as_str(), path);
    if mounted.is_err() {
        let _ = rustix::fs::unlink(path);
    }
    Ok(mounted?)
}

/// Removes a name; an absent one is fine.
pub(crate) fn remove_netns_name(path: &Path) -> io::Result<()> {
    // A descriptor opened by this path keeps the mount busy, but not attached.
    while mount_table::read_mount_table()?.iter().any(|mount| mount.mount_point == path) {
        mount_table::unmount_point(path, true)?;
    }
    match rustix::fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The type of the file system of namespaces, from `linux/magic.h`.
const NSFS_MAGIC: u64 = 0x6e73_6673;

/// Opens the namespace of a name; `None` if the name is absent or an empty file without a namespace.
pub(crate) fn open_named_netns(path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        other => other?,
    };
    let is_namespace = u64::try_from(rustix::fs::fstatfs(&file)?.f_type) == Ok(NSFS_MAGIC);
    Ok(is_namespace.then_some(file))
}
