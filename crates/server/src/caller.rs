//! Who sent a request.

use std::net::SocketAddr;

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A process of this user, or of root.
    Unix,
    /// Any process that can reach the port.
    Tcp(SocketAddr),
}

/// The id of a request, from the caller or made here; each request has this extension, each answer the header
/// `x-request-id`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(pub String);

/// Which room of the server a connection has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// That of all requests.
    Usual,
    /// That of requests that end something.
    Reserved,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Unix => f.write_str("unix"),
            Peer::Tcp(address) => address.fmt(f),
        }
    }
}
