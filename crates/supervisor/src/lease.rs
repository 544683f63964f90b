//! The lease of a detached sandbox. A renewal survives a takeover.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use penfold_state::time::{now_ms, whole_millis};
use rustix::fs::MemfdFlags;

/// The end of a sandbox's life, unless a client renews it.
pub(crate) struct Lease {
    /// The end of the original lease, or of the last renewal before a takeover.
    end: Option<Instant>,
    /// A memfd for the process that takes over: the end of a renewed lease in milliseconds since `opened`. Empty
    /// without a renewal.
    renewed: OwnedFd,
    opened: Instant,
    expires_at_ms: Option<u64>,
}

impl Lease {
    /// Creates a lease of this length from now on; `None` means without end.
    pub(crate) fn create(length: Option<Duration>) -> io::Result<Lease> {
        let now = Instant::now();
        Ok(Lease {
            end: length.and_then(|length| now.checked_add(length)),
            renewed: rustix::fs::memfd_create(c"lease", MemfdFlags::CLOEXEC)?,
            opened: now,
            expires_at_ms: length.map(|length| now_ms().saturating_add(whole_millis(length))),
        })
    }

    /// Returns the end of the lease at the start of this supervisor.
    pub(crate) fn end(&self) -> Option<Instant> {
        self.end
    }

    /// Returns the current end in milliseconds since 1970.
    pub(crate) fn expires_at_ms(&self) -> Option<u64> {
        self.expires_at_ms
    }

    /// Loads a renewal from before a takeover.
    pub(crate) fn inherit(&mut self) {
        let mut end = [0; 8];
        if rustix::io::pread(&self.renewed, &mut end, 0) != Ok(end.len()) {
            return;
        }
        let end = Some(u64::from_ne_bytes(end)).filter(|&end| end > 0).map(Duration::from_millis);
        self.end = end.and_then(|end| self.opened.checked_add(end));
        let left = self.end.map(|lease| lease.saturating_duration_since(Instant::now()));
        self.expires_at_ms = left.map(|left| now_ms().saturating_add(whole_millis(left)));
    }

    /// Records a renewal for `ms` milliseconds until `end`; 0 means without end.
    pub(crate) fn renew(&mut self, ms: u64, end: Option<Instant>) {
        self.expires_at_ms = (ms > 0).then(|| now_ms().saturating_add(ms));
        let end = end.map_or(0, |end| whole_millis(end.saturating_duration_since(self.opened)).max(1));
        let _ = rustix::io::pwrite(&self.renewed, &end.to_ne_bytes(), 0);
    }
}
