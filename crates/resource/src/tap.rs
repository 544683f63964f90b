//! A persistent tap device, in the network namespace of the sandbox or on the host.

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd as _;
use std::time::Instant;

use rustix::fs::{Mode, OFlags, open};
use serde::{Deserialize, Serialize};

use crate::error::{ResourceError, failed_step};
use crate::inside::{NamespaceEntry, enter_namespace, socket_in};
use crate::links::{self, NamespaceView};
use crate::netlink::NetlinkSocket;
use crate::netns::Netns;
use crate::owner::ResourceOwner;
use crate::presence::ResourcePresence;

/// A tap device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tap {
    /// The name.
    pub name: String,
    /// The network namespace of the device; `None` on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<Netns>,
    /// The inode of the planner's network namespace.
    pub home: u64,
    /// The user who may open the device; `None` for root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
}

impl Tap {
    pub(crate) fn describe(&self) -> String {
        match &self.netns {
            Some(netns) => format!("tap `{}` in {}", self.name, netns.describe()),
            None => format!("tap `{}`", self.name),
        }
    }

    /// A device in the sandbox's own namespace needs no check: the namespace does not exist yet.
    pub(crate) fn check(&self) -> Result<(), ResourceError> {
        let looked = |error| failed_step(|| format!("look for {}", self.describe()))(error);
        if self.netns.is_some() {
            return Ok(());
        }
        let socket = NetlinkSocket::open().map_err(looked)?;
        match (NamespaceView { socket: &socket, nsid: None }).find(&self.name).map_err(looked)? {
            Some(_) => Err(ResourceError::Taken { resource: self.describe() }),
            None => Ok(()),
        }
    }

    pub(crate) fn create(&self, owner: &ResourceOwner) -> Result<(), ResourceError> {
        let namespace = self.netns.as_ref().map(Netns::open).transpose()?;
        let make = || {
            let (tun, socket) = match &namespace {
                Some(namespace) => {
                    let inside = enter_namespace(NamespaceEntry::Existing(namespace.as_fd()), true)?;
                    (inside.tun.ok_or(rustix::io::Errno::BADMSG)?, inside.netlink)
                }
                None => (
                    open("/dev/net/tun", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?,
                    NetlinkSocket::open()?,
                ),
            };
            let name = CString::new(self.name.as_str())?;
            penfold_sys::device::tap_create(tun.as_fd(), &name)?;
            penfold_sys::crash_point!("tap-made");
            links::set_alias(&socket, links::index_of(&socket, &self.name)?, &owner.alias())?;
            if let Some(uid) = self.user {
                penfold_sys::device::tap_set_owner(tun.as_fd(), uid)?;
            }
            // Until here, the device goes with its descriptor.
            penfold_sys::device::tap_persist(tun.as_fd())?;
            penfold_sys::crash_point!("tap-kept");
            links::set_up(&socket, links::index_of(&socket, &self.name)?)
        };
        let result: io::Result<()> = make();
        if result.is_err() {
            let _ = self.remove(owner);
        }
        result.map_err(failed_step(|| format!("make {}", self.describe())))
    }

    pub(crate) fn probe(&self, owner: &ResourceOwner) -> Result<ResourcePresence, ResourceError> {
        let look = || format!("look for {}", self.describe());
        let Some(home) = socket_in(self.home).map_err(failed_step(look))? else {
            return Ok(ResourcePresence::Absent);
        };
        Ok(match self.view(&home).find(&self.name).map_err(failed_step(look))? {
            None => ResourcePresence::Absent,
            Some(link) => match links::foreign_alias(&link, &owner.alias()) {
                Some(why) => ResourcePresence::Foreign { why },
                None => ResourcePresence::Ours { held_by: Vec::new() },
            },
        })
    }

    pub(crate) fn release(&self, owner: &ResourceOwner, until: Instant) -> Result<(), ResourceError> {
        links::remove_link(&self.describe(), until, || self.remove(owner), || self.probe(owner))
    }

    /// The kernel deletes a tap that a process has open, too.
    fn remove(&self, owner: &ResourceOwner) -> io::Result<()> {
        let Some(home) = socket_in(self.home)? else { return Ok(()) };
        let view = self.view(&home);
        match view.find(&self.name)? {
            Some(link) if links::foreign_alias(&link, &owner.alias()).is_none() => view.delete(link.index),
            _ => Ok(()),
        }
    }

    fn view<'a>(&self, home: &'a NetlinkSocket) -> NamespaceView<'a> {
        NamespaceView { socket: home, nsid: self.netns.as_ref().map(|netns| netns.nsid) }
    }
}
