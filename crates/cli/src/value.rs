//! Parsers for argument values: durations, sizes, signals, names, labels, environment settings.
//!
//! Pure functions from text to value. An error names the given text and the accepted forms. This module imports
//! no other module of the crate, so that a fuzzer can include it by path.

mod duration;
mod keys;
mod limits;
mod signal;
mod size;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use penfold_state::names;
use rustix::process::Pid;

#[allow(unused_imports, reason = "for messages that name a duration")]
pub(crate) use duration::Exact;
pub(crate) use duration::duration;
pub(crate) use keys::{Keys, keys};
pub(crate) use limits::{cpus, memory, pids};
pub(crate) use signal::{ReservedSignal, Signal, name as signal_name, signal};
pub(crate) use size::{Bytes, size};

/// The text is not of the accepted form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` {problem}; accepted: {accepted}")]
pub(crate) struct Invalid {
    given: String,
    problem: &'static str,
    accepted: &'static str,
}

impl Invalid {
    pub(crate) fn new(given: impl Into<String>, problem: &'static str, accepted: &'static str) -> Invalid {
        Invalid { given: given.into(), problem, accepted }
    }
}

/// The value of `-e`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EnvSetting {
    /// The name of the variable; not empty, without `=`.
    pub(crate) key: OsString,
    /// The value; `None` copies the caller's value.
    pub(crate) value: Option<OsString>,
}

/// A label, `key=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    /// 1 to 64 characters, `a-z A-Z 0-9 . _ - /`, the first a letter or digit.
    pub(crate) key: String,
    /// Any text without control characters, at most 256 bytes.
    pub(crate) value: String,
}

/// Parses the name of a sandbox.
pub(crate) fn name(given: &str) -> Result<String, Invalid> {
    if names::is_name(given) {
        return Ok(given.to_owned());
    }
    Err(Invalid::new(given, "is not a name", names::NAME_RULE))
}

/// Parses a label, see [`Label`].
pub(crate) fn label(given: &str) -> Result<Label, Invalid> {
    match given.split_once('=') {
        Some((key, value)) if names::is_label_key(key) && names::is_label_value(value) => {
            Ok(Label { key: key.to_owned(), value: value.to_owned() })
        }
        _ => Err(Invalid::new(
            given,
            "is not a label",
            "`key=value`, the key like a name, the value up to 256 bytes",
        )),
    }
}

/// Parses `K` or `K=V`; keeps bytes that are not UTF-8.
pub(crate) fn env_setting(given: &OsStr) -> Result<EnvSetting, Invalid> {
    let bytes = given.as_bytes();
    let (key, value) = match bytes.iter().position(|&byte| byte == b'=') {
        Some(at) => (&bytes[..at], Some(OsString::from_vec(bytes[at + 1..].to_vec()))),
        None => (bytes, None),
    };
    if key.is_empty() {
        return Err(Invalid::new(
            given.to_string_lossy(),
            "names no variable",
            "`KEY=VALUE`, or `KEY` to copy the caller's value",
        ));
    }
    Ok(EnvSetting { key: OsString::from_vec(key.to_vec()), value })
}

/// Parses `K=V`; keeps bytes that are not UTF-8.
pub(crate) fn env_pair(given: &OsStr) -> Result<(OsString, OsString), Invalid> {
    match env_setting(given) {
        Ok(EnvSetting { key, value: Some(value) }) => Ok((key, value)),
        _ => Err(Invalid::new(given.to_string_lossy(), "is not a variable with its value", "`KEY=VALUE`")),
    }
}

/// Parses the state root. It must be UTF-8, because records and events contain the path as JSON text.
pub(crate) fn root(given: &OsStr) -> Result<PathBuf, Invalid> {
    match given.to_str() {
        Some("") => Err(Invalid::new("", "names no directory", "a path")),
        Some(text) => Ok(PathBuf::from(text)),
        None => Err(Invalid::new(given.to_string_lossy(), "is not UTF-8", "a path that is text")),
    }
}

/// The event log that is the journal of systemd.
pub(crate) const JOURNALD: &str = "journald";

/// Parses an event log.
pub(crate) fn event_log(given: &str) -> Result<String, Invalid> {
    if given.is_empty() {
        return Err(Invalid::new("", "names no file", "`journald` or a path"));
    }
    Ok(given.to_owned())
}

/// Parses a whole number.
pub(crate) fn number(given: &str) -> Result<u64, Invalid> {
    let digits = !given.is_empty() && given.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| given.parse().ok()).flatten();
    number.ok_or_else(|| Invalid::new(given, "is not a number", "a whole number such as `20`"))
}

/// Parses the id of a process, process group or session.
pub(crate) fn pid(given: &str) -> Result<Pid, Invalid> {
    given
        .parse()
        .ok()
        .filter(|&number: &i32| number > 0 && given.starts_with(|first: char| first.is_ascii_digit()))
        .and_then(Pid::from_raw)
        .ok_or_else(|| Invalid::new(given, "is not a process number", "a number from 1 to 2147483647"))
}

/// Parses the identity of a process: its id, or id and start time as `PID@START`.
pub(crate) fn process(given: &str) -> Result<(Pid, Option<u64>), Invalid> {
    let Some((number, start)) = given.split_once('@') else { return pid(given).map(|pid| (pid, None)) };
    let is_number = !start.is_empty() && start.bytes().all(|byte| byte.is_ascii_digit());
    let start = start.parse().ok().filter(|_| is_number);
    let start = start.ok_or_else(|| Invalid::new(given, "has no start time", "PID, or PID@START"))?;
    Ok((pid(number)?, Some(start)))
}
