//! Checks of values in requests.

use std::collections::BTreeMap;
use std::time::Duration;

use penfold_server::is_settable;
use penfold_state::Limits;
use penfold_state::limits::{CPUS, MEMORY_BYTES, PIDS};
use penfold_state::names;

use super::problem::Problem;

/// The largest log.
pub(super) const LARGEST_LOG: u64 = 64 << 30;
/// The longest time: 100 years of 365 days.
const LONGEST_MS: u64 = 100 * 365 * 24 * 60 * 60 * 1000;
/// The server itself trusts labels with this prefix: tokens, idempotency keys, sessions.
const OWN_LABELS: &str = "penfold.";

/// Checks a command: a program, and no word with a NUL.
pub(super) fn valid_command(field: &str, words: &[String]) -> Result<(), Problem> {
    if words.first().is_none_or(String::is_empty) {
        return Err(Problem::field(field, "names no program"));
    }
    words.iter().try_for_each(|word| valid_text(field, word))
}

/// Checks a text that the kernel must accept: no NUL.
pub(super) fn valid_text(field: &str, text: &str) -> Result<(), Problem> {
    if text.contains('\0') { Err(Problem::field(field, "contains a NUL")) } else { Ok(()) }
}

/// Checks a name of a sandbox.
pub(super) fn valid_name(field: &str, name: &str) -> Result<(), Problem> {
    if names::is_name(name) {
        return Ok(());
    }
    Err(Problem::field(field, format!("not {}", names::NAME_RULE)))
}

/// Checks labels.
pub(super) fn valid_labels(labels: &BTreeMap<String, String>) -> Result<(), Problem> {
    for (key, value) in labels {
        if !names::is_label_key(key) {
            return Err(Problem::field("labels", "a key is like a name, and may contain `/`"));
        }
        if key.starts_with(OWN_LABELS) {
            return Err(Problem::field("labels", "keys that begin with `penfold.` are those of the server"));
        }
        if !names::is_label_value(value) {
            return Err(Problem::field("labels", "a value has at most 256 bytes and no control characters"));
        }
    }
    Ok(())
}

/// Checks variables.
pub(super) fn valid_environment(variables: &BTreeMap<String, String>) -> Result<(), Problem> {
    for (key, value) in variables {
        if !is_settable(key) {
            return Err(Problem::field(
                "env",
                "a name is empty, contains `=` or NUL, or begins with `PENFOLD_`",
            ));
        }
        valid_text("env", value)?;
    }
    Ok(())
}

/// Converts a time in milliseconds.
pub(super) fn valid_time(field: &str, ms: u64) -> Result<Duration, Problem> {
    if ms > LONGEST_MS {
        Err(Problem::field(field, "longer than 100 years"))
    } else {
        Ok(Duration::from_millis(ms))
    }
}

/// Checks limits.
pub(super) fn valid_limits(
    memory_bytes: Option<u64>,
    pids: Option<u64>,
    cpus: Option<f64>,
) -> Result<Limits, Problem> {
    if memory_bytes.is_some_and(|bytes| !MEMORY_BYTES.contains(&bytes)) {
        return Err(Problem::field(
            "memory_bytes",
            "not from 1048576 (1 MiB) to 1125899906842624 (1024 TiB)",
        ));
    }
    if pids.is_some_and(|pids| !PIDS.contains(&pids)) {
        return Err(Problem::field("pids", "not from 1 to 4194304"));
    }
    let seconds = cpus.map(|cpus| Duration::try_from_secs_f64(cpus).ok().filter(|cpus| CPUS.contains(cpus)));
    match seconds {
        Some(None) => Err(Problem::field("cpus", "not from 0.01 to 8192")),
        cpus => Ok(Limits { memory_bytes, pids, cpus: cpus.flatten() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 17.1
    #[test]
    fn absurd_limits_are_refused_by_the_name_of_their_field() {
        let good = valid_limits(Some(1 << 29), Some(100), Some(1.5)).ok().unwrap();
        let expected =
            Limits { memory_bytes: Some(1 << 29), pids: Some(100), cpus: Some(Duration::from_millis(1500)) };
        assert_eq!(good, expected);
        assert!(valid_limits(None, None, None).ok().unwrap().is_empty());
        for bytes in [0, (1 << 20) - 1, (1 << 50) + 1] {
            assert!(valid_limits(Some(bytes), None, None).is_err(), "{bytes}");
        }
        for pids in [0, (4 << 20) + 1] {
            assert!(valid_limits(None, Some(pids), None).is_err(), "{pids}");
        }
        for cpus in [0.0, -1.0, 0.001, 8193.0, f64::NAN, f64::INFINITY] {
            assert!(valid_limits(None, None, Some(cpus)).is_err(), "{cpus}");
        }
    }
}
