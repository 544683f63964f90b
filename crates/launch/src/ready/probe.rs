//! A probe as a user writes it: `port:8080`, `log:REGEX`, `http:URL`, `cmd:LINE`, `fd:N`.

use penfold_client::ServerAddress;
use regex_lite::Regex;

/// The longest probe, in bytes: a record keeps its text.
const LONGEST: usize = 4096;
const USUAL_PORT: &str = "80";

/// A probe: what shows that a sandbox is ready.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The probe as the user wrote it.
    pub text: String,
    pub(super) kind: ProbeKind,
}

/// The kinds of probes.
#[derive(Clone, Debug)]
pub(super) enum ProbeKind {
    /// A member listens on this TCP port.
    Port(u16),
    /// A line of the log matches.
    Log(Regex),
    /// A GET request for this path is answered with 2xx or 3xx.
    Http(ServerAddress, String),
    /// This line of shell exits with 0 inside the sandbox.
    Command(String),
    /// The command writes a line feed to its descriptor of this number.
    Descriptor(i32),
}

/// The text is not a probe.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// The text has no known kind.
    #[error("`{0}` is not a probe; accepted: `port:N`, `log:REGEX`, `http:URL`, `cmd:LINE`, `fd:N`")]
    Kind(String),
    /// The number is no port.
    #[error("`{0}` is not a port; accepted: a number from 1 to 65535")]
    Port(String),
    /// The regular expression is wrong or too large.
    #[error("`{text}` is not a regular expression: {reason}")]
    Regex {
        /// The expression.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The text is no URL that can be asked.
    #[error("`{0}` is not a URL that penfold can ask; accepted: `http://HOST[:PORT][/PATH]`")]
    Url(String),
    /// The line is empty.
    #[error("`cmd:` has no command; accepted: `cmd:LINE`, a line for `sh -c`")]
    NoCommand,
    /// The number is no descriptor that can be given.
    #[error("`{0}` is not a descriptor; accepted: a number from 3 to 1023")]
    Descriptor(String),
    /// The text is too long, or has a NUL.
    #[error("the probe has a NUL, or more than {LONGEST} bytes")]
    TooLong,
}

/// Parses the value of `--ready`.
pub fn parse_probe(given: &str) -> Result<Probe, ProbeError> {
    if given.len() > LONGEST || given.contains('\0') {
        return Err(ProbeError::TooLong);
    }
    let (kind, rest) = given.split_once(':').ok_or_else(|| ProbeError::Kind(given.to_owned()))?;
    let kind = match kind {
        "port" => {
            let port = number(rest).and_then(|number| u16::try_from(number).ok()).filter(|port| *port > 0);
            ProbeKind::Port(port.ok_or_else(|| ProbeError::Port(rest.to_owned()))?)
        }
        "log" => ProbeKind::Log(
            Regex::new(rest)
                .map_err(|error| ProbeError::Regex { text: rest.to_owned(), reason: error.to_string() })?,
        ),
        "http" => {
            // `http:http://…`, or the URL alone.
            let (host, path) = url(if rest.starts_with("//") { given } else { rest })
                .ok_or_else(|| ProbeError::Url(rest.to_owned()))?;
            ProbeKind::Http(host, path)
        }
        "cmd" if rest.trim().is_empty() => return Err(ProbeError::NoCommand),
        "cmd" => ProbeKind::Command(rest.to_owned()),
        "fd" => {
            let number = number(rest).filter(|number| (3..1024).contains(number));
            ProbeKind::Descriptor(number.ok_or_else(|| ProbeError::Descriptor(rest.to_owned()))?)
        }
        _ => return Err(ProbeError::Kind(given.to_owned())),
    };
    Ok(Probe { text: given.to_owned(), kind })
}

fn number(text: &str) -> Option<i32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// Splits a URL into its server and its path.
fn url(text: &str) -> Option<(ServerAddress, String)> {
    let rest = text.strip_prefix("http://")?;
    let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (place, path) = rest.split_at(at);
    // A fragment is not sent.
    let path = path.split('#').next().unwrap_or_default();
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic());
    let is_complete = place.rsplit_once(':').is_some_and(|(_, port)| number(port).is_some());
    let place = if is_complete { format!("http://{place}") } else { format!("http://{place}:{USUAL_PORT}") };
    place.parse().ok().filter(|_| is_plain).map(|host| (host, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 25.2
    #[test]
    fn a_probe_is_of_one_of_five_kinds() {
        for text in
            ["port:8080", "log:^listening on \\d+$", "http:http://[::1]:80/x?y", "cmd:test -S x:y", "fd:3"]
        {
            assert_eq!(parse_probe(text).unwrap().text, text);
        }
        for (text, expected) in [
            ("http:http://localhost:3000/health", ("http://localhost:3000", "/health")),
            ("http://127.0.0.1", ("http://127.0.0.1:80", "/")),
            ("http://127.0.0.1:8?a#b", ("http://127.0.0.1:8", "/?a")),
            ("http:http://[::1]/", ("http://[::1]:80", "/")),
        ] {
            let ProbeKind::Http(host, path) = parse_probe(text).unwrap().kind else { panic!("{text}") };
            assert_eq!((host.to_string().as_str(), path.as_str()), expected);
        }
    }

    /// spec: 25.2
    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "8080",
            "port:",
            "port:0",
            "port:65536",
            "port:+1",
            "log:(",
            "http:",
            "http:https://a",
            "http:a",
            "http://",
            "http://a b",
            "http://a/ b",
            "cmd:",
            "cmd: ",
            "fd:2",
            "fd:x",
            "fd:1024",
            "tcp:1",
            "PORT:1",
            "cmd:a\0b",
        ] {
            assert!(parse_probe(text).is_err(), "{text}");
        }
        assert_eq!(parse_probe(&format!("log:{}", "x".repeat(LONGEST))).unwrap_err(), ProbeError::TooLong);
        assert_eq!(
            parse_probe("log:(x").unwrap_err().to_string(),
            "`(x` is not a regular expression: found open group without closing ')'"
        );
    }
}
