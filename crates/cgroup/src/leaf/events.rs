//! What `cgroup.events` says.

use std::os::fd::AsFd as _;

use super::{Cgroup, CgroupError};
use crate::dir;

impl Cgroup {
    /// Tells whether the cgroup or one below it has a live process. Zombies do not count.
    ///
    /// A removed cgroup is not populated. The value is always current.
    pub fn populated(&self) -> Result<bool, CgroupError> {
        self.event(|line| line == b"populated 0").map(|is_empty| is_empty == Some(false))
    }

    /// Tells whether all members in the cgroup and below are frozen, by this cgroup or one above.
    ///
    /// A removed cgroup is not frozen.
    pub fn frozen(&self) -> Result<bool, CgroupError> {
        self.event(|line| line == b"frozen 1").map(|is_frozen| is_frozen == Some(true))
    }

    /// Tells whether the cgroup has been removed.
    ///
    /// # Errors
    /// When `cgroup.events` cannot be read.
    pub fn is_gone(&self) -> Result<bool, CgroupError> {
        self.event(|_| false).map(|seen| seen.is_none())
    }

    /// Tells whether a line of `cgroup.events` is the one; `None` of a removed cgroup.
    fn event(&self, is_it: impl Fn(&[u8]) -> bool) -> Result<Option<bool>, CgroupError> {
        let mut text = [0; 128];
        let read = match &self.events {
            Some(events) => rustix::io::retry_on_intr(|| rustix::io::pread(events, &mut text, 0)),
            None => dir::read_short(self.dir.as_fd(), c"cgroup.events", &mut text).map(<[u8]>::len),
        };
        match read {
            Ok(length) => Ok(Some(text[..length].split(|&byte| byte == b'\n').any(is_it))),
            Err(errno) if dir::is_gone(errno) => Ok(None),
            Err(errno) => {
                Err(CgroupError::Read { path: self.path.join("cgroup.events"), source: errno.into() })
            }
        }
    }
}
