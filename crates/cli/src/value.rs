//! Parsers for the values of flags: those of a request, which `request` has, and those of the command line alone.

mod keys;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use rustix::process::Pid;

pub(crate) use keys::{Keys, keys};
pub(crate) use penfold_request::value::{
    Bytes, EnvSetting, Invalid, JOURNALD, Label, ReservedSignal, Signal, cpus, duration, env_setting,
    event_log, jail_user, label, memory, name, number, pids, policy_text, restart_policy, signal,
    signal_name, size, spare_rule,
};

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

/// Parses the id of a process, process group or session.
pub(crate) fn pid(given: &str) -> Result<Pid, Invalid> {
    given
        .parse()
        .ok()
        .filter(|&number: &i32| number > 0 && given.starts_with(|first: char| first.is_ascii_digit()))
        .and_then(Pid::from_raw)
        .ok_or_else(|| Invalid::new(given, "is not a process number", "a number from 1 to 2147483647"))
}

/// Parses a TCP port.
pub(crate) fn port(given: &str) -> Result<u16, Invalid> {
    let port = number(given).ok().and_then(|number| u16::try_from(number).ok()).filter(|&port| port > 0);
    port.ok_or_else(|| Invalid::new(given, "is not a port", "a number from 1 to 65535"))
}

/// Parses the identity of a process: its id, or id and start time as `PID@START`.
pub(crate) fn process(given: &str) -> Result<(Pid, Option<u64>), Invalid> {
    let Some((number, start)) = given.split_once('@') else { return pid(given).map(|pid| (pid, None)) };
    let is_number = !start.is_empty() && start.bytes().all(|byte| byte.is_ascii_digit());
    let start = start.parse().ok().filter(|_| is_number);
    let start = start.ok_or_else(|| Invalid::new(given, "has no start time", "PID, or PID@START"))?;
    Ok((pid(number)?, Some(start)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_variable_of_a_target_has_a_value() {
        assert!(env_pair(OsStr::new("K")).is_err());
        assert_eq!(env_pair(OsStr::new("K=v")), Ok(("K".into(), "v".into())));
    }

    #[test]
    fn process_numbers_are_positive() {
        assert_eq!(pid("1").map(|pid| pid.as_raw_nonzero().get()), Ok(1));
        for text in ["", "0", "-1", "+1", "1 ", "2147483648", "x"] {
            assert!(pid(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in any::<String>()) {
            let _ = (pid(&text), process(&text), keys(&text));
        }

        #[test]
        fn no_near_miss_makes_a_parser_panic(text in "[-+]?[0-9.@]{0,30}[a-z]{0,3}") {
            let _ = (pid(&text), process(&text), keys(&text));
        }

        #[test]
        fn no_bytes_make_a_variable_panic(bytes in any::<Vec<u8>>()) {
            let _ = env_pair(OsStr::from_bytes(&bytes));
        }
    }
}
