//! Signals in requests: names and numbers.

use rustix::process::Signal;

use super::problem::Problem;

/// The signals with names, by number, as on all architectures that penfold runs on.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// Parses `TERM`, `SIGTERM`, `term` or `15`.
pub(super) fn parse_signal(field: &str, text: &str) -> Result<Signal, Problem> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let number = match NAMES.iter().position(|known| *known == name) {
        Some(index) => i32::try_from(index + 1).ok(),
        None if text.len() <= 3 && text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        None => None,
    };
    number
        .filter(|number| *number > 0)
        .and_then(penfold_sys::signal::signal_of_number)
        .ok_or_else(|| Problem::field(field, "not a signal; accepted: a name such as `TERM`, or a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_a_name_or_a_number() {
        for text in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(parse_signal("signal", text).unwrap(), Signal::TERM, "{text}");
        }
        for text in ["", "0", "-1", "99999999999", "NOPE", "SIG", "SIGSIGTERM", "TERM ", "1e1"] {
            assert!(parse_signal("signal", text).is_err(), "{text}");
        }
    }
}
