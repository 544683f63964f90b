//! A limit for the number of live processes of a storm, which holds even when they are killed.

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

use super::env::TestEnv;

/// A set of names, one for each process that may live; each process binds a socket to one of them ([unix(7)],
/// abstract).
///
/// The kernel frees the name when the process ends in any way, so a killed process makes room for another: the limit
/// does not help a killer.
///
/// [unix(7)]: https://man7.org/linux/man-pages/man7/unix.7.html
#[derive(Debug, Clone)]
pub(crate) struct Slots {
    name: String,
    count: u32,
}

/// The right to live; ends with the process.
#[derive(Debug)]
pub(crate) struct Slot {
    _socket: OwnedFd,
}

impl Slots {
    pub(crate) fn new(env: &TestEnv, count: u32) -> Slots {
        Slots { name: env.tag(), count }
    }

    /// Takes a free slot. Tries four only: with all slots taken, an attempt must not cost a full scan.
    pub(crate) fn take(&self, seed: &mut u32) -> Option<Slot> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
        let taken = (0..4).any(|_| {
            *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let slot = (*seed >> 8) % self.count;
            let address = SocketAddrUnix::new_abstract_name(format!("{}/{slot}", self.name).as_bytes());
            address.is_ok_and(|address| bind(&socket, &address).is_ok())
        });
        taken.then_some(Slot { _socket: socket })
    }
}

/// Returns a start for the order in which this process tries slots.
pub(crate) fn seed() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().unsigned_abs().wrapping_mul(2_654_435_761)
}
