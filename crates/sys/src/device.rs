//! The ioctls of tap and loop devices.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// `ioctl(TUNSETIFF)`—Makes the tap device `name` for a descriptor of `/dev/net/tun`. The device is gone when the
/// descriptor is closed, unless [`tap_persist`] was called.
///
/// # Errors
/// `EBUSY` if there is a device of this name, `EINVAL` if the name is too long, `EPERM` without `CAP_NET_ADMIN`.
pub fn tap_create(tun: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
    const IFF_TUN_EXCL: libc::c_int = 0x8000;
    let bytes = name.to_bytes();
    // SAFETY: all zeroes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if bytes.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = libc::c_char::from_ne_bytes(from.to_ne_bytes());
    }
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | IFF_TUN_EXCL;
    let [low, high, ..] = flags.to_le_bytes();
    request.ifr_ifru.ifru_flags = i16::from_le_bytes([low, high]);
    // SAFETY: the request reads and writes an ifreq, which lives for the call.
    let result = unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETIFF, &raw mut request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `ioctl(TUNSETOWNER)`—Lets this user open the tap device.
///
/// # Errors
/// `EINVAL` if no uid of this number exists in the caller's user namespace.
pub fn tap_set_owner(tun: BorrowedFd<'_>, uid: u32) -> io::Result<()> {
    const TUNSETOWNER: libc::Ioctl = 0x4004_54cc;
    // SAFETY: the argument is a number.
    let result = unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETOWNER, libc::c_ulong::from(uid)) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `ioctl(TUNSETPERSIST)`—Keeps the tap device after its descriptor is closed.
///
/// # Errors
/// `EBADFD` without [`tap_create`].
pub fn tap_persist(tun: BorrowedFd<'_>) -> io::Result<()> {
    const TUNSETPERSIST: libc::Ioctl = 0x4004_54cb;
    let on: libc::c_ulong = 1;
    // SAFETY: the argument is a number.
    let result = unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETPERSIST, on) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `ioctl(LOOP_CLR_FD)`—Takes the backing file from a loop device. If the device is open elsewhere, the kernel does so
/// at the last close.
///
/// # Errors
/// `ENXIO` if the device has no backing file.
pub fn loop_clear(device: BorrowedFd<'_>) -> io::Result<()> {
    const LOOP_CLR_FD: libc::Ioctl = 0x4c01;
    // SAFETY: the request takes no argument.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
