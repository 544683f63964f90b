//! The address of a host that ssh reaches.

use std::fmt;
use std::str::FromStr;

/// `ssh://[USER@]HOST[:PORT][/PATH]`, PATH being that of penfold there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SshHost {
    user: Option<String>,
    name: String,
    port: Option<u16>,
    /// The path of penfold on that host; `None` if its PATH leads there.
    program: Option<String>,
}

/// The text is no such address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not the address of a host; accepted: `ssh://[USER@]HOST[:PORT][/PATH]`, PATH being that of penfold there"
)]
pub(crate) struct InvalidSshHost(String);

impl FromStr for SshHost {
    type Err = InvalidSshHost;

    fn from_str(text: &str) -> Result<SshHost, InvalidSshHost> {
        let invalid = || InvalidSshHost(text.to_owned());
        let rest = text.strip_prefix("ssh://").ok_or_else(invalid)?;
        let (place, program) = match rest.find('/') {
            Some(at) => (&rest[..at], Some(&rest[at..])),
            None => (rest, None),
        };
        let (user, place) = match place.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, place),
        };
        let (name, port) = match place.strip_prefix('[').and_then(|place| place.split_once(']')) {
            Some((name, "")) if name.parse::<std::net::Ipv6Addr>().is_ok() => (name, None),
            Some((name, port)) if name.parse::<std::net::Ipv6Addr>().is_ok() => {
                (name, Some(port.strip_prefix(':').ok_or_else(invalid)?))
            }
            Some(_) => return Err(invalid()),
            None => place.split_once(':').map_or((place, None), |(name, port)| (name, Some(port))),
        };
        let port =
            port.map(|port| port.parse().ok().filter(|port| *port > 0).ok_or_else(invalid)).transpose()?;
        // A name that begins with a hyphen would be an option of ssh.
        let is_plain = |word: &str, others: &[u8]| {
            !word.is_empty()
                && !word.starts_with('-')
                && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || others.contains(&byte))
        };
        if !is_plain(name, b"-._:%") || !user.is_none_or(|user| is_plain(user, b"-._+@")) {
            return Err(invalid());
        }
        let program = program.filter(|path| *path != "/").map(str::to_owned);
        if program.as_ref().is_some_and(|path| path.ends_with('/') || path.chars().any(char::is_control)) {
            return Err(invalid());
        }
        Ok(SshHost { user: user.map(str::to_owned), name: name.to_owned(), port, program })
    }
}

impl fmt::Display for SshHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ssh://{}", self.destination())?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        f.write_str(self.program.as_deref().unwrap_or_default())
    }
}

impl SshHost {
    /// What ssh calls the destination.
    pub(crate) fn destination(&self) -> String {
        self.user.as_ref().map_or_else(|| self.name.clone(), |user| format!("{user}@{}", self.name))
    }

    pub(crate) fn port(&self) -> Option<u16> {
        self.port
    }

    /// The command line for the shell of that host.
    pub(crate) fn program(&self) -> String {
        penfold_process::quote_words([self.program.as_deref().unwrap_or("penfold")])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 32.1
    #[test]
    fn an_address_has_a_host_and_perhaps_user_port_and_path() {
        for (text, destination, port, program) in [
            ("ssh://build", "build", None, "penfold"),
            ("ssh://me@build-1.example:2222", "me@build-1.example", Some(2222), "penfold"),
            ("ssh://build/opt/penfold", "build", None, "/opt/penfold"),
            ("ssh://[::1]:22/opt/a b", "::1", Some(22), "'/opt/a b'"),
            ("ssh://build/", "build", None, "penfold"),
        ] {
            let host: SshHost = text.parse().unwrap();
            assert_eq!(
                (host.destination().as_str(), host.port(), host.program().as_str()),
                (destination, port, program)
            );
        }
        assert_eq!("ssh://me@a:22/x".parse::<SshHost>().unwrap().to_string(), "ssh://me@a:22/x");
    }

    /// spec: 32.1
    #[test]
    fn other_texts_are_refused() {
        for text in [
            "ssh://",
            "ssh://-oProxyCommand=x",
            "ssh://a:0",
            "ssh://a:b",
            "ssh://@a",
            "ssh://-x@a",
            "ssh://a b",
            "ssh://a;b",
            "ssh://[a]",
            "ssh://[::1]x",
            "ssh:a",
            "http://a:1",
            "ssh://a/x/",
            "ssh://a/x\n",
        ] {
            assert!(text.parse::<SshHost>().is_err(), "{text}");
        }
    }
}
