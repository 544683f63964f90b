//! The signal that a flag names, as the kernel takes it.

use rustix::process::Signal;

use crate::value;

/// A signal that cannot be sent on purpose.
#[derive(Debug, thiserror::Error)]
#[error("signals 32 and 33 belong to the C library")]
pub(crate) struct ReservedSignal;

/// A signal as the kernel takes it.
///
/// # Errors
/// For the two that cannot be sent on purpose.
pub(crate) fn sendable(signal: value::Signal) -> Result<Signal, ReservedSignal> {
    penfold_sys::signal::signal(signal.number()).ok_or(ReservedSignal)
}
