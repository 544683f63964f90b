//! Time limits, and pauses in the place of ends.

/// The time limit that a client gets without asking for one, in seconds.
pub(super) const USUAL_TIMEOUT: u64 = 300;
/// The longest time limit, in seconds: ten years.
const LONGEST: u64 = 315_360_000;
/// Why a pause without the memory is refused.
pub(super) const NO_COLD_START: &str =
    "a pause keeps the memory: a sandbox is not started anew from its files";

/// The lease for a time limit in seconds. A lease of 0 would be none.
pub(super) fn lease_ms(timeout: u64) -> u64 {
    timeout.min(LONGEST).saturating_mul(1000).max(1)
}
