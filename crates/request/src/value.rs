//! Parsers for the values of a request: durations, sizes, limits, signals, names, labels, environment settings, restart policies.
//!
//! Functions from text to value. An error names the given text and the accepted forms. The command line uses them for its flags, and
//! penfold for the texts of a [`SandboxSpec`](crate::SandboxSpec).

mod duration;
mod limits;
mod restart;
mod signal;
mod size;
mod spare;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use penfold_state::names;

pub use duration::{Exact, duration};
pub use limits::{cpus, memory, pids};
pub use restart::{policy_text, restart_policy};
pub use signal::{ReservedSignal, Signal, name as signal_name, signal};
pub use size::{Bytes, size};
pub use spare::spare_rule;

/// The text is not of the accepted form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` {problem}; accepted: {accepted}")]
pub struct Invalid {
    given: String,
    problem: &'static str,
    accepted: &'static str,
}

impl Invalid {
    /// Creates the error: the text, what is wrong with it, and what is accepted.
    pub fn new(given: impl Into<String>, problem: &'static str, accepted: &'static str) -> Invalid {
        Invalid { given: given.into(), problem, accepted }
    }
}

/// The value of `-e`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvSetting {
    /// The name of the variable; not empty, without `=`.
    pub key: OsString,
    /// The value; `None` copies the caller's value.
    pub value: Option<OsString>,
}

/// A label, `key=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// 1 to 64 characters, `a-z A-Z 0-9 . _ - /`, the first a letter or digit.
    pub key: String,
    /// Any text without control characters, at most 256 bytes.
    pub value: String,
}

/// Parses the name of a sandbox.
pub fn name(given: &str) -> Result<String, Invalid> {
    if names::is_name(given) {
        return Ok(given.to_owned());
    }
    Err(Invalid::new(given, "is not a name", names::NAME_RULE))
}

/// The longest name of a jail's user.
const LONGEST_LOGIN: usize = 32;

/// Parses the name of a jail's user.
pub fn jail_user(given: &str) -> Result<String, Invalid> {
    let is_first = |byte: &u8| byte.is_ascii_lowercase() || *byte == b'_';
    let is_next = |byte: &u8| is_first(byte) || byte.is_ascii_digit() || *byte == b'-';
    let is_login = given.as_bytes().first().is_some_and(is_first)
        && given.as_bytes().iter().all(is_next)
        && given.len() <= LONGEST_LOGIN;
    if is_login && given != "root" {
        return Ok(given.to_owned());
    }
    let accepted = "1 to 32 of `a-z 0-9 _ -`, the first a letter or `_`; not `root`";
    Err(Invalid::new(given, "is no name for the user of a jail", accepted))
}

/// Parses a label, see [`Label`].
pub fn label(given: &str) -> Result<Label, Invalid> {
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
pub fn env_setting(given: &OsStr) -> Result<EnvSetting, Invalid> {
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

/// The event log that is the journal of systemd.
pub const JOURNALD: &str = "journald";

/// Parses an event log.
pub fn event_log(given: &str) -> Result<String, Invalid> {
    if given.is_empty() {
        return Err(Invalid::new("", "names no file", "`journald` or a path"));
    }
    Ok(given.to_owned())
}

/// Parses a whole number.
pub fn number(given: &str) -> Result<u64, Invalid> {
    let digits = !given.is_empty() && given.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| given.parse().ok()).flatten();
    number.ok_or_else(|| Invalid::new(given, "is not a number", "a whole number such as `20`"))
}
