//! Links of a network namespace.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Instant;

use netlink_packet_core::DefaultNla;
use rustix::io::Errno;

use crate::cidr::Cidr;
use crate::deadline::Pauses;
use crate::error::{ResourceError, failed_step};
use crate::netlink::{
    CREATE, DUMP, EXCLUSIVE, NetlinkMessage, NetlinkSocket, bytes_attribute, find_attribute,
    nested_attribute, text_attribute, text_of,
};
use crate::presence::ResourcePresence;

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const SET_LINK: u16 = 19;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;

/// The length of an `ifinfomsg`.
const LINK_HEADER: usize = 16;
const NAME: u16 = 3;
const LINK_INFO: u16 = 18;
const ALIAS: u16 = 20;
const NAMESPACE_FD: u16 = 28;
const TARGET_NSID: u16 = 46;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const VETH_PEER: u16 = 1;
const UP: u32 = 1;

/// A link that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: i32,
    pub(crate) alias: Option<String>,
}

fn link_header(index: i32, up: bool) -> Vec<u8> {
    let flags = if up { UP } else { 0 };
    [&[0; 4][..], &index.to_ne_bytes(), &flags.to_ne_bytes(), &flags.to_ne_bytes()].concat()
}

fn change(socket: &NetlinkSocket, index: i32, up: bool, attributes: Vec<DefaultNla>) -> io::Result<()> {
    socket
        .ask(&NetlinkMessage { kind: SET_LINK, flags: 0, header: link_header(index, up), attributes })
        .map(drop)
}

/// A network namespace as seen from a socket: that of the socket, or the one with this number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NamespaceView<'a> {
    pub(crate) socket: &'a NetlinkSocket,
    pub(crate) nsid: Option<i32>,
}

impl NamespaceView<'_> {
    fn attributes(&self) -> Vec<DefaultNla> {
        self.nsid.map(|number| bytes_attribute(TARGET_NSID, &number.to_ne_bytes())).into_iter().collect()
    }

    /// Finds a link by its name; `None` if there is none, or no such namespace.
    pub(crate) fn find(&self, name: &str) -> io::Result<Option<Link>> {
        let mut attributes = self.attributes();
        attributes.push(text_attribute(NAME, name));
        let message = NetlinkMessage { kind: GET_LINK, flags: 0, header: link_header(0, false), attributes };
        let answers = match self.socket.ask(&message) {
            Err(error) if is_absent(&error, self.nsid.is_some()) => return Ok(None),
            other => other?,
        };
        let answer = answers.first().ok_or(Errno::BADMSG)?;
        let index = answer.get(4..8).and_then(<[u8]>::first_chunk).copied().ok_or(Errno::BADMSG)?;
        Ok(Some(Link { index: i32::from_ne_bytes(index), alias: text_of(answer, LINK_HEADER, ALIAS) }))
    }

    /// Deletes a link; an absent one is fine.
    pub(crate) fn delete(&self, index: i32) -> io::Result<()> {
        let attributes = self.attributes();
        let message =
            NetlinkMessage { kind: DELETE_LINK, flags: 0, header: link_header(index, false), attributes };
        match self.socket.ask(&message) {
            Err(error) if !is_absent(&error, self.nsid.is_some()) => Err(error),
            _ => {
                penfold_sys::crash_point!("link-deleted");
                Ok(())
            }
        }
    }
}

/// With a number, the kernel says `EINVAL` if no namespace has it.
fn is_absent(error: &io::Error, numbered: bool) -> bool {
    match Errno::from_io_error(error) {
        Some(Errno::NODEV) => true,
        Some(Errno::INVAL | Errno::NOENT) => numbered,
        _ => false,
    }
}

/// Makes a veth pair; both ends are in the namespace of the socket.
pub(crate) fn create_veth(socket: &NetlinkSocket, name: &str, peer: &str) -> io::Result<()> {
    let peer = nested_attribute(VETH_PEER, &link_header(0, false), &[text_attribute(NAME, peer)]);
    let info = [text_attribute(INFO_KIND, "veth"), nested_attribute(INFO_DATA, &[], &[peer])];
    let attributes = vec![text_attribute(NAME, name), nested_attribute(LINK_INFO, &[], &info)];
    let flags = CREATE | EXCLUSIVE;
    socket.ask(&NetlinkMessage { kind: NEW_LINK, flags, header: link_header(0, false), attributes }).map(drop)
}

/// Sets the alias of a link.
pub(crate) fn set_alias(socket: &NetlinkSocket, index: i32, alias: &str) -> io::Result<()> {
    change(socket, index, false, vec![bytes_attribute(ALIAS, alias.as_bytes())])
}

/// Moves a link into another namespace; it keeps its name and alias.
pub(crate) fn move_to(socket: &NetlinkSocket, index: i32, namespace: BorrowedFd<'_>) -> io::Result<()> {
    change(socket, index, false, vec![bytes_attribute(NAMESPACE_FD, &namespace.as_raw_fd().to_ne_bytes())])
}

/// Sets a link up.
pub(crate) fn set_up(socket: &NetlinkSocket, index: i32) -> io::Result<()> {
    change(socket, index, true, Vec::new())
}

/// Finds a link that must exist.
pub(crate) fn index_of(socket: &NetlinkSocket, name: &str) -> io::Result<i32> {
    let found = NamespaceView { socket, nsid: None }.find(name)?;
    found.map(|link| link.index).ok_or_else(|| Errno::NODEV.into())
}

/// The family of an address, `AF_INET` or `AF_INET6`, and its bytes.
fn family_and_bytes(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(address) => (2, address.octets().to_vec()),
        IpAddr::V6(address) => (10, address.octets().to_vec()),
    }
}

/// Gives a link an address.
pub(crate) fn add_address(socket: &NetlinkSocket, index: i32, address: Cidr) -> io::Result<()> {
    const LOCAL: u16 = 2;
    const ADDRESS: u16 = 1;
    /// No duplicate address detection: the peer is ours, and the command connects at once.
    const NO_DAD: u8 = 2;
    let (family, octets) = family_and_bytes(address.address());
    let header = [&[family, address.prefix(), NO_DAD, 0][..], &index.to_ne_bytes()].concat();
    let attributes = vec![bytes_attribute(LOCAL, &octets), bytes_attribute(ADDRESS, &octets)];
    socket.ask(&NetlinkMessage { kind: NEW_ADDRESS, flags: CREATE | EXCLUSIVE, header, attributes }).map(drop)
}

/// Adds the default route over a gateway.
pub(crate) fn add_default_route(socket: &NetlinkSocket, index: i32, gateway: IpAddr) -> io::Result<()> {
    const OUT: u16 = 4;
    const GATEWAY: u16 = 5;
    const MAIN_TABLE: u8 = 254;
    const BOOT: u8 = 3;
    const UNICAST: u8 = 1;
    let (family, octets) = family_and_bytes(gateway);
    let header = vec![family, 0, 0, 0, MAIN_TABLE, BOOT, 0, UNICAST, 0, 0, 0, 0];
    let attributes = vec![bytes_attribute(GATEWAY, &octets), bytes_attribute(OUT, &index.to_ne_bytes())];
    socket.ask(&NetlinkMessage { kind: NEW_ROUTE, flags: CREATE | EXCLUSIVE, header, attributes }).map(drop)
}

/// Tells whether a link of the namespace has this address.
pub(crate) fn has_address(socket: &NetlinkSocket, address: IpAddr) -> io::Result<bool> {
    const LOCAL: u16 = 2;
    const ADDRESS: u16 = 1;
    const HEADER: usize = 8;
    let (family, octets) = family_and_bytes(address);
    let header = vec![family, 0, 0, 0, 0, 0, 0, 0];
    let message = NetlinkMessage { kind: GET_ADDRESS, flags: DUMP, header, attributes: Vec::new() };
    Ok(socket.ask(&message)?.iter().any(|answer| {
        let local = find_attribute(answer, HEADER, LOCAL).or_else(|| find_attribute(answer, HEADER, ADDRESS));
        local == Some(octets.as_slice())
    }))
}

/// Removes a link until a look shows that it is gone.
pub(crate) fn remove_link(
    resource: &str,
    until: Instant,
    remove: impl Fn() -> io::Result<()>,
    probe: impl Fn() -> Result<ResourcePresence, ResourceError>,
) -> Result<(), ResourceError> {
    let mut pauses = Pauses::until(until);
    loop {
        let removed = remove();
        match probe()? {
            ResourcePresence::Absent => return Ok(()),
            ResourcePresence::Foreign { why } => {
                return Err(ResourceError::Foreign { resource: resource.to_owned(), why });
            }
            ResourcePresence::Ours { held_by } if !pauses.pause() => {
                removed.map_err(failed_step(|| format!("delete {resource}")))?;
                return Err(ResourceError::Held { resource: resource.to_owned(), held_by });
            }
            ResourcePresence::Ours { .. } => {}
        }
    }
}

/// Lists the links of the own namespace with their aliases.
pub(crate) fn list_links(socket: &NetlinkSocket) -> io::Result<Vec<(String, Option<String>)>> {
    let header = link_header(0, false);
    let answers =
        socket.ask(&NetlinkMessage { kind: GET_LINK, flags: DUMP, header, attributes: Vec::new() })?;
    let link =
        |answer: &Vec<u8>| Some((text_of(answer, LINK_HEADER, NAME)?, text_of(answer, LINK_HEADER, ALIAS)));
    Ok(answers.iter().filter_map(link).collect())
}

/// Tells whether an alias is there that is not this one.
pub(crate) fn foreign_alias(link: &Link, alias: &str) -> Option<String> {
    match &link.alias {
        Some(found) if found == alias => None,
        Some(found) => Some(format!("its alias is `{found}`")),
        None => Some("it has no alias".to_owned()),
    }
}
