//! The lease of a detached sandbox, and how a renewal outlives a supervisor.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use penfold_state::time::{millis, now_ms};
use rustix::fs::MemfdFlags;

/// When a sandbox ends unless somebody renews it.
pub(crate) struct Lease {
    /// When it ends that the sandbox was made with, or that was renewed before a takeover.
    end: Option<Instant>,
    /// Where whoever takes over reads of a lease that was renewed: when it ends, in milliseconds since `opened`. Empty while
    /// none was.
    renewed: OwnedFd,
    opened: Instant,
    expires_at_ms: Option<u64>,
}

impl Lease {
    /// A lease of this length from now on; without one it never ends.
    pub(crate) fn create(length: Option<Duration>) -> io::Result<Lease> {
        let now = Instant::now();
        Ok(Lease {
            end: length.and_then(|length| now.checked_add(length)),
            renewed: rustix::fs::memfd_create(c"lease", MemfdFlags::CLOEXEC)?,
            opened: now,
            expires_at_ms: length.map(|length| now_ms().saturating_add(millis(length))),
        })
    }

    /// When the lease ends that the supervisor began with.
    pub(crate) fn end(&self) -> Option<Instant> {
        self.end
    }

    /// When it ends now, in milliseconds since 1970.
    pub(crate) fn expires_at_ms(&self) -> Option<u64> {
        self.expires_at_ms
    }

    /// Takes on a renewal before a takeover.
    pub(crate) fn inherit(&mut self) {
        let mut end = [0; 8];
        if rustix::io::pread(&self.renewed, &mut end, 0) != Ok(end.len()) {
            return;
        }
        let end = Some(u64::from_ne_bytes(end)).filter(|&end| end > 0).map(Duration::from_millis);
        self.end = end.and_then(|end| self.opened.checked_add(end));
        let left = self.end.map(|lease| lease.saturating_duration_since(Instant::now()));
        self.expires_at_ms = left.map(|left| now_ms().saturating_add(millis(left)));
    }

    /// Writes down that the lease is so many milliseconds long, and when it ends; 0 means that it never does.
    pub(crate) fn renew(&mut self, ms: u64, end: Option<Instant>) {
        self.expires_at_ms = (ms > 0).then(|| now_ms().saturating_add(ms));
        let end = end.map_or(0, |end| millis(end.saturating_duration_since(self.opened)).max(1));
        let _ = rustix::io::pwrite(&self.renewed, &end.to_ne_bytes(), 0);
    }
}
