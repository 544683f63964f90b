//! A pair of links: `pf-<id>` on the host, `eth0` in the network namespace.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Instant;

use rustix::fs::{Mode, OFlags, open};
use serde::{Deserialize, Serialize};

use crate::cidr::Cidr;
use crate::error::{ResourceError, failed_step};
use crate::inside::{NamespaceEntry, enter_namespace, socket_in};
use crate::links::{self, NamespaceView};
use crate::netlink::NetlinkSocket;
use crate::netns::Netns;
use crate::owner::ResourceOwner;
use crate::presence::ResourcePresence;

/// The name of the inner end.
pub(crate) const PEER: &str = "eth0";

/// A veth pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Veth {
    /// The name of the host's end.
    pub name: String,
    /// The network namespace of the other end, `eth0`.
    pub netns: Netns,
    /// The address of the host's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_address: Option<Cidr>,
    /// The address of the inner end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Cidr>,
    /// The gateway of the default route in the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

impl Veth {
    pub(crate) fn describe(&self) -> String {
        format!("link `{}`", self.name)
    }

    pub(crate) fn check(&self) -> Result<(), ResourceError> {
        let looked = |error| failed_step(|| format!("look for {}", self.describe()))(error);
        let socket = NetlinkSocket::open().map_err(looked)?;
        if (NamespaceView { socket: &socket, nsid: None }).find(&self.name).map_err(looked)?.is_some() {
            return Err(ResourceError::Taken { resource: self.describe() });
        }
        if let Some(address) = self.host_address
            && links::has_address(&socket, address.address()).map_err(looked)?
        {
            return Err(ResourceError::Taken { resource: format!("address {}", address.address()) });
        }
        Ok(())
    }

    pub(crate) fn create(&self, owner: &ResourceOwner) -> Result<(), ResourceError> {
        let namespace = self.netns.open()?;
        let made = self.make(owner, namespace.as_fd());
        if made.is_err() {
            // The parts that carry the alias, wherever they are.
            let _ = self.remove(owner);
        }
        made.map_err(failed_step(|| format!("make {}", self.describe())))
    }

    /// Both ends are made in the namespace, which ends with the sandbox. The host's end comes out only with its alias:
    /// there is no moment in which it has no owner.
    fn make(&self, owner: &ResourceOwner, namespace: BorrowedFd<'_>) -> io::Result<()> {
        let inside = enter_namespace(NamespaceEntry::Existing(namespace), false)?;
        let here = open("/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        links::create_veth(&inside.netlink, &self.name, PEER)?;
        penfold_sys::crash_point!("veth-made");
        let inner = links::index_of(&inside.netlink, PEER)?;
        let outer = links::index_of(&inside.netlink, &self.name)?;
        links::set_alias(&inside.netlink, inner, &owner.alias())?;
        links::set_alias(&inside.netlink, outer, &owner.alias())?;
        penfold_sys::crash_point!("veth-marked");
        links::move_to(&inside.netlink, outer, here.as_fd())?;
        penfold_sys::crash_point!("veth-moved");
        let socket = NetlinkSocket::open()?;
        let outer = links::index_of(&socket, &self.name)?;
        if let Some(address) = self.host_address {
            links::add_address(&socket, outer, address)?;
        }
        links::set_up(&socket, outer)?;
        if let Some(address) = self.address {
            links::add_address(&inside.netlink, inner, address)?;
        }
        links::set_up(&inside.netlink, inner)?;
        penfold_sys::crash_point!("veth-up");
        self.gateway.map_or(Ok(()), |gateway| links::add_default_route(&inside.netlink, inner, gateway))
    }

    pub(crate) fn probe(&self, owner: &ResourceOwner) -> Result<ResourcePresence, ResourceError> {
        let look = || format!("look for {}", self.describe());
        let Some(home) = socket_in(self.netns.home).map_err(failed_step(look))? else {
            return Ok(ResourcePresence::Absent);
        };
        let view = NamespaceView { socket: &home, nsid: None };
        if let Some(link) = view.find(&self.name).map_err(failed_step(look))? {
            return Ok(match links::foreign_alias(&link, &owner.alias()) {
                Some(why) => ResourcePresence::Foreign { why },
                None => ResourcePresence::Ours { held_by: Vec::new() },
            });
        }
        let inner = self.inner(&home, owner).map_err(failed_step(look))?;
        Ok(if inner.is_empty() {
            ResourcePresence::Absent
        } else {
            ResourcePresence::Ours { held_by: Vec::new() }
        })
    }

    pub(crate) fn release(&self, owner: &ResourceOwner, until: Instant) -> Result<(), ResourceError> {
        links::remove_link(&self.describe(), until, || self.remove(owner), || self.probe(owner))
    }

    /// Deletes both ends, where they are ours; either takes the other with it.
    fn remove(&self, owner: &ResourceOwner) -> io::Result<()> {
        let Some(home) = socket_in(self.netns.home)? else { return Ok(()) };
        let view = NamespaceView { socket: &home, nsid: None };
        if let Some(link) = view.find(&self.name)?
            && links::foreign_alias(&link, &owner.alias()).is_none()
        {
            view.delete(link.index)?;
        }
        let inside = NamespaceView { socket: &home, nsid: Some(self.netns.nsid) };
        for index in self.inner(&home, owner)? {
            inside.delete(index)?;
        }
        Ok(())
    }

    /// Finds what is in the namespace: the inner end, and a host's end that was never moved out.
    fn inner(&self, home: &NetlinkSocket, owner: &ResourceOwner) -> io::Result<Vec<i32>> {
        let inside = NamespaceView { socket: home, nsid: Some(self.netns.nsid) };
        let mut found = Vec::new();
        // The command may make an `eth0` of its own; only this name is ours without a doubt.
        found.extend(inside.find(&self.name)?.map(|link| link.index));
        let eth0 = inside.find(PEER)?.filter(|link| links::foreign_alias(link, &owner.alias()).is_none());
        found.extend(eth0.map(|link| link.index));
        Ok(found)
    }
}
