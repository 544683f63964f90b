//! The open input of a recorded exec: a FIFO in its directory, into which any client may write while the command runs.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::ExecFiles;

const INPUT: &str = "input";
const FLAGS: OFlags = OFlags::NONBLOCK.union(OFlags::NOFOLLOW).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Both ends of an open input.
#[derive(Debug)]
pub struct ExecInput {
    /// What the command reads.
    pub reader: OwnedFd,
    /// As long as this is open, the input does not end with the last client that writes.
    pub holder: OwnedFd,
}

impl ExecFiles {
    /// Makes the open input.
    ///
    /// # Errors
    /// When the disk is full, or there is one.
    pub fn make_input(&self) -> io::Result<ExecInput> {
        rustix::fs::mknodat(self.dir(), INPUT, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        // A reader first: without one, the other end cannot be opened.
        let reader = rustix::fs::openat(self.dir(), INPUT, OFlags::RDONLY | FLAGS, Mode::empty())?;
        let holder = rustix::fs::openat(self.dir(), INPUT, OFlags::WRONLY | FLAGS, Mode::empty())?;
        // The command waits for input, as with any pipe.
        let flags = rustix::fs::fcntl_getfl(&reader)?;
        rustix::fs::fcntl_setfl(&reader, flags.difference(OFlags::NONBLOCK))?;
        Ok(ExecInput { reader, holder })
    }

    /// Opens the input to write into it, without waiting for room; `None` if there is none, or nobody reads it any more.
    ///
    /// # Errors
    /// When a member has put something else in its place.
    pub fn open_input(&self) -> io::Result<Option<OwnedFd>> {
        let input = match rustix::fs::openat(self.dir(), INPUT, OFlags::WRONLY | FLAGS, Mode::empty()) {
            Ok(input) => input,
            Err(Errno::NOENT | Errno::NXIO) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&input)?.st_mode);
        if kind == FileType::Fifo { Ok(Some(input)) } else { Err(io::Error::other("the input is no FIFO")) }
    }

    /// Removes the input: nobody opens it any more.
    pub fn remove_input(&self) {
        let _ = rustix::fs::unlinkat(self.dir(), INPUT, AtFlags::empty());
    }
}
