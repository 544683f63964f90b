//! Why the server did not start, or did not go on.

use std::io;
use std::net::SocketAddr;

/// Why the server did not start, or did not go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The runtime did not start.
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
    /// The server cannot listen.
    #[error("cannot listen on `{address}`")]
    Listen {
        /// The address, as it is typed.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// A loopback address needs a token.
    #[error("`{0}` needs a token, since every user of this host can reach it")]
    LoopbackToken(SocketAddr),
    /// Any other address needs a token.
    #[error("`{0}` needs a token, since other hosts can reach it")]
    Token(SocketAddr),
}
