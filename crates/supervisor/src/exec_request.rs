//! The requests that a supervisor sends to its exec supervisors, each as the value of a queued real-time signal.
//!
//! A pidfd is enough to send them, so a supervisor that has taken over can send them too. Members of the sandbox can
//! send them as well: the exec supervisor has their user, and they can kill it.

use std::os::fd::BorrowedFd;

use crate::wire::Size;

/// The real-time signal that carries a request.
pub(crate) const EXEC_REQUEST: i32 = 44;

/// The longest grace that fits: about nine thousand years.
const MAX_GRACE_MS: u64 = (1 << 48) - 2;

/// A request to an exec supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExecRequest {
    /// Kill the exec.
    Kill,
    /// Stop the exec with this signal (0 means its own) and grace in milliseconds.
    Stop { signal: u8, grace_ms: Option<u64> },
    /// Send this signal to the command.
    Signal(u8),
    /// Set the size of the terminal.
    Resize(Size),
    /// End the open input.
    CloseInput,
}

impl ExecRequest {
    /// Sends the request to the exec supervisor with this pidfd.
    ///
    /// # Errors
    /// When the exec supervisor is gone, or has too many signals pending.
    pub(crate) fn send(self, supervisor: BorrowedFd<'_>) -> std::io::Result<()> {
        penfold_sys::signal::queue_signal(supervisor, EXEC_REQUEST, self.encode())?;
        // A member may have stopped the exec supervisor.
        let _ = rustix::process::pidfd_send_signal(supervisor, rustix::process::Signal::CONT);
        Ok(())
    }

    fn encode(self) -> u64 {
        match self {
            ExecRequest::Kill => 1,
            ExecRequest::Stop { signal, grace_ms } => {
                let grace = grace_ms.map_or(0, |grace| grace.min(MAX_GRACE_MS) + 1);
                2 | u64::from(signal) << 8 | grace << 16
            }
            ExecRequest::Signal(signal) => 3 | u64::from(signal) << 8,
            ExecRequest::Resize(Size { rows, columns }) => {
                4 | u64::from(rows) << 16 | u64::from(columns) << 32
            }
            ExecRequest::CloseInput => 5,
        }
    }

    /// Returns the request of a received value.
    pub(crate) fn decode(value: u64) -> Option<ExecRequest> {
        let [kind, signal, bytes @ ..] = value.to_le_bytes();
        let [a, b, c, d, ..] = bytes;
        match kind {
            1 => Some(ExecRequest::Kill),
            2 => Some(ExecRequest::Stop { signal, grace_ms: (value >> 16).checked_sub(1) }),
            3 => Some(ExecRequest::Signal(signal)),
            4 => Some(ExecRequest::Resize(Size {
                rows: u16::from_le_bytes([a, b]),
                columns: u16::from_le_bytes([c, d]),
            })),
            5 => Some(ExecRequest::CloseInput),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_survives_its_encoding() {
        let all = [
            ExecRequest::Kill,
            ExecRequest::Stop { signal: 0, grace_ms: None },
            ExecRequest::Stop { signal: 64, grace_ms: Some(0) },
            ExecRequest::Stop { signal: 15, grace_ms: Some(MAX_GRACE_MS) },
            ExecRequest::Signal(9),
            ExecRequest::Resize(Size { rows: u16::MAX, columns: 1 }),
            ExecRequest::CloseInput,
        ];
        for request in all {
            assert_eq!(ExecRequest::decode(request.encode()), Some(request));
        }
        assert_eq!(ExecRequest::decode(0), None);
    }
}
