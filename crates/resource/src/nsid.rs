//! Numbers of network namespaces: how one namespace calls another.
//!
//! The kernel forgets a number when the numbered namespace ends: when no process, descriptor, socket or mount holds it.
//! So the answer to "which namespace has this number" proves the end of a namespace whose name is gone already.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::io::Errno;

use crate::netlink::{NetlinkMessage, NetlinkSocket, bytes_attribute, number_of};

const NEW: u16 = 88;
const GET: u16 = 90;
const NSID: u16 = 1;
const FD: u16 = 3;
/// The group of events in which the kernel announces that a number was forgotten.
pub(crate) const EVENTS: u32 = 28;

/// Gives the namespace this number in the namespace of the socket.
///
/// # Errors
/// `EEXIST` if the number is taken or the namespace has another number.
pub(crate) fn assign_nsid(home: &NetlinkSocket, namespace: BorrowedFd<'_>, number: i32) -> io::Result<()> {
    let attributes = vec![
        bytes_attribute(NSID, &number.to_ne_bytes()),
        bytes_attribute(FD, &namespace.as_raw_fd().to_ne_bytes()),
    ];
    home.ask(&NetlinkMessage { kind: NEW, flags: 0, header: vec![0; 4], attributes }).map(drop)
}

/// Returns the number of a namespace in the namespace of the socket, if it has one.
pub(crate) fn read_nsid(home: &NetlinkSocket, namespace: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let attributes = vec![bytes_attribute(FD, &namespace.as_raw_fd().to_ne_bytes())];
    let answers = home.ask(&NetlinkMessage { kind: GET, flags: 0, header: vec![0; 4], attributes })?;
    let number = answers.first().and_then(|answer| number_of(answer, 4, NSID));
    Ok(number.filter(|number| *number >= 0))
}

/// Tells whether a namespace with this number lives.
pub(crate) fn is_known(home: &NetlinkSocket, number: i32) -> io::Result<bool> {
    let attributes = vec![bytes_attribute(NSID, &number.to_ne_bytes())];
    match home.ask(&NetlinkMessage { kind: GET, flags: 0, header: vec![0; 4], attributes }) {
        Ok(_) => Ok(true),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}
