//! The addresses on which the server listens, as they are typed.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// An address on which the server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// `unix:PATH`: a Unix socket.
    Unix(PathBuf),
    /// `HOST:PORT`: a TCP port.
    Tcp(SocketAddr),
}

/// Text that is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an address is `unix:PATH` or `HOST:PORT`, where HOST is an IP address or `localhost`")]
pub struct InvalidAddress;

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Address, InvalidAddress> {
        if let Some(path) = text.strip_prefix("unix:") {
            let is_path = !path.is_empty() && !path.contains('\0');
            return if is_path { Ok(Address::Unix(path.into())) } else { Err(InvalidAddress) };
        }
        if let Some(port) = text.strip_prefix("localhost:") {
            let port = port.parse().map_err(|_| InvalidAddress)?;
            return Ok(Address::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)));
        }
        text.parse().map(Address::Tcp).map_err(|_| InvalidAddress)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => write!(f, "{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_back() {
        for text in ["unix:/run/penfold/api.sock", "unix:api.sock", "127.0.0.1:3000", "[::1]:80", "0.0.0.0:1"]
        {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("localhost:9".parse::<Address>().unwrap().to_string(), "127.0.0.1:9");
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "unix:", "3000", ":3000", "example.org:80", "127.0.0.1", "127.0.0.1:70000", "/run/x"]
        {
            assert_eq!(text.parse::<Address>(), Err(InvalidAddress), "{text}");
        }
    }
}
