//! The values of `--memory`, `--pids` and `--cpus`.

use std::time::Duration;

use penfold_state::limits::{CPUS, MEMORY_BYTES, PIDS};

use super::{Invalid, number, size};

/// Parses a limit of memory, in bytes.
pub fn memory(given: &str) -> Result<u64, Invalid> {
    const ACCEPTED: &str = "a size from `1M` to `1024T`";
    let bytes = size(given)?;
    if MEMORY_BYTES.contains(&bytes) {
        return Ok(bytes);
    }
    let problem = if bytes < *MEMORY_BYTES.start() { "is too little memory" } else { "is too much memory" };
    Err(Invalid::new(given, problem, ACCEPTED))
}

/// Parses a limit of processes.
pub fn pids(given: &str) -> Result<u64, Invalid> {
    let accepted = "a whole number from 1 to 4194304";
    number(given)
        .ok()
        .filter(|pids| PIDS.contains(pids))
        .ok_or_else(|| Invalid::new(given, "is not a number of processes", accepted))
}

/// Parses a number of processors, as the processor time for each second.
pub fn cpus(given: &str) -> Result<Duration, Invalid> {
    // The parser of the standard library also takes signs, exponents and words.
    let plain = given.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    plain
        .then(|| given.parse().ok())
        .flatten()
        .and_then(|cpus| Duration::try_from_secs_f64(cpus).ok())
        .filter(|cpus| CPUS.contains(cpus))
        .ok_or_else(|| {
            Invalid::new(given, "is not a number of processors", "a number from 0.01 to 8192, such as `1.5`")
        })
}
