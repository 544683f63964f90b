//! Signals: `TERM SIGTERM 15 RTMIN+3 RTMAX-1`.

use std::fmt;

use super::Invalid;

const ACCEPTED: &str = "a name such as `TERM` or `SIGTERM`, a number from 1 to 64, `RTMIN+3`, `RTMAX-1`";

/// The real-time signals as the C library numbers them: it uses 32 and 33 for its threads.
const RTMIN: i32 = 34;
const RTMAX: i32 = 64;

/// The names on x86, arm64 and RISC-V, see signal(7). Output uses the first name of a number.
const NAMES: [(&str, i32); 34] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("IOT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("POLL", 29),
    ("PWR", 30),
    ("SYS", 31),
];

/// A signal number, 1 to 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(i32);

/// The signal belongs to the C library and cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("signals 32 and 33 belong to the C library")]
pub struct ReservedSignal;

impl Signal {
    /// The number of the signal.
    pub fn number(self) -> i32 {
        self.0
    }

    /// Converts to a signal that can be sent.
    ///
    /// # Errors
    /// For 32 and 33.
    pub fn sendable(self) -> Result<rustix::process::Signal, ReservedSignal> {
        penfold_sys::signal::signal_of_number(self.0).ok_or(ReservedSignal)
    }
}

/// Parses a signal, ignoring case. Zero is not accepted.
pub fn signal(given: &str) -> Result<Signal, Invalid> {
    let refuse = |problem| Invalid::new(given, problem, ACCEPTED);
    if !given.is_empty() && given.bytes().all(|byte| byte.is_ascii_digit()) {
        return given
            .parse()
            .ok()
            .filter(|number| (1..=RTMAX).contains(number))
            .map(Signal)
            .ok_or_else(|| refuse("is not the number of a signal"));
    }
    let upper = given.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let real_time = || {
        name.strip_prefix("RTMIN")
            .and_then(|offset| Some(RTMIN + steps(offset, '+')?))
            .or_else(|| name.strip_prefix("RTMAX").and_then(|offset| Some(RTMAX - steps(offset, '-')?)))
    };
    NAMES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, number)| *number)
        .or_else(real_time)
        .map(Signal)
        .ok_or_else(|| refuse("is not a signal"))
}

/// The name of the signal with this number.
pub fn name(number: i32) -> String {
    Signal(number).to_string()
}

/// Parses the offset `+3`; empty text is 0.
fn steps(offset: &str, sign: char) -> Option<i32> {
    if offset.is_empty() {
        return Some(0);
    }
    let digits = offset.strip_prefix(sign)?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|steps| plain && (0..=RTMAX - RTMIN).contains(steps))
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIDDLE: i32 = 49;
        if let Some((name, _)) = NAMES.iter().find(|(_, number)| *number == self.0) {
            return f.write_str(name);
        }
        match self.0 {
            RTMIN => f.write_str("RTMIN"),
            RTMAX => f.write_str("RTMAX"),
            number if number > RTMIN && number <= MIDDLE => write!(f, "RTMIN+{}", number - RTMIN),
            number if number > MIDDLE => write!(f, "RTMAX-{}", RTMAX - number),
            // 32 and 33 belong to the C library and have no name.
            number => write!(f, "{number}"),
        }
    }
}
