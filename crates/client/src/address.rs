//! The address of a server.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// A port: the host's name or address, without brackets, and the number.
    Tcp(String, u16),
}

/// The text is not the address of a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not the address of a server; accepted: `unix:PATH` with an absolute path, `http://HOST:PORT`"
)]
pub struct InvalidHost(String);

impl FromStr for ServerAddress {
    type Err = InvalidHost;

    fn from_str(text: &str) -> Result<ServerAddress, InvalidHost> {
        let invalid = || InvalidHost(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return path.starts_with('/').then(|| ServerAddress::Unix(path.into())).ok_or_else(invalid);
        }
        let place = text.strip_prefix("http://").ok_or_else(invalid)?;
        let (name, port) = place.strip_suffix('/').unwrap_or(place).rsplit_once(':').ok_or_else(invalid)?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(invalid)?;
        let bracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        match bracketed {
            Some(address) if address.parse::<std::net::Ipv6Addr>().is_ok() => {
                Ok(ServerAddress::Tcp(address.to_owned(), port))
            }
            None if !name.is_empty() && name.bytes().all(is_plain) => {
                Ok(ServerAddress::Tcp(name.to_owned(), port))
            }
            _ => Err(invalid()),
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            ServerAddress::Tcp(..) => write!(f, "http://{}", self.authority()),
        }
    }
}

impl ServerAddress {
    /// The value of the header `Host`.
    pub(crate) fn authority(&self) -> String {
        match self {
            ServerAddress::Unix(_) => "localhost".to_owned(),
            ServerAddress::Tcp(name, port) if name.contains(':') => format!("[{name}]:{port}"),
            ServerAddress::Tcp(name, port) => format!("{name}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_socket_or_a_port() {
        for (text, expected) in [
            ("unix:/run/a b", "unix:/run/a b"),
            ("unix:///run/x", "unix:/run/x"),
            ("http://127.0.0.1:80", "http://127.0.0.1:80"),
            ("http://build-1.example:3000/", "http://build-1.example:3000"),
            ("http://[::1]:9", "http://[::1]:9"),
        ] {
            assert_eq!(text.parse::<ServerAddress>().unwrap().to_string(), expected);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "unix:",
            "unix:x",
            "/x",
            "http://",
            "http://a",
            "http://a:0",
            "http://a:70000",
            "http://:1",
            "https://a:1",
            "http://a:1/x",
            "http://u@a:1",
            "http://[a]:1",
            "http://a b:1",
            "tcp://a:1",
        ] {
            assert!(text.parse::<ServerAddress>().is_err(), "{text}");
        }
    }
}
