//! The signal that a flag names, as the kernel takes it.

use rustix::process::Signal;

use crate::failure::Failure;
use crate::{exit_codes, value};

/// A signal as the kernel takes it.
///
/// # Errors
/// For the two that cannot be sent on purpose.
pub(crate) fn sendable(signal: value::Signal) -> Result<Signal, Failure> {
    penfold_sys::signal::signal(signal.number())
        .ok_or_else(|| Failure::new(exit_codes::USAGE, "signals 32 and 33 belong to the C library"))
}
