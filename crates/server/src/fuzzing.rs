//! The HTTP edge for the targets of `fuzz/`: bytes of a connection in, bytes out. Every call into penfold is refused, so
//! that no request changes anything.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;

use crate::app::App;
use crate::caller::Peer;
use crate::config::Config;
use crate::connections::Connections;
use crate::dialect::Dialect;
use crate::front::Front;
use crate::limits::Limits;
use crate::tokens::Tokens;

/// The token of callers on TCP.
pub const TOKEN: &str = "0123456789abcdef";
/// The detail of an answer to a request that passed every check.
pub const PASSED: &str = "the call was abandoned";

/// A server without a socket.
pub struct Edge {
    runtime: Runtime,
    connections: Connections,
}

impl Edge {
    /// Makes a server with these dialects. A request by TCP needs [`TOKEN`].
    ///
    /// # Panics
    /// When there is no descriptor for the runtime.
    pub fn new(dialects: Vec<Dialect>) -> Edge {
        let config = Config {
            templates: std::collections::BTreeMap::new(),
            state_root: "/nonexistent".into(),
            temporary: "/nonexistent".into(),
            program: "/nonexistent".into(),
            environment: Vec::new(),
            tokens: Tokens::parse(TOKEN.as_bytes()).expect("it is a token"),
            token_file: None,
            has_terminal: false,
            limits: Limits::default(),
            drain: std::time::Duration::ZERO,
        };
        let app = App::new(config);
        let connections = Connections::new(&app, Front::new(&app, dialects));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        Edge { runtime: runtime.expect("a runtime can be made"), connections }
    }

    /// Returns the answers to all that a peer sends on one connection. Time passes while nothing else happens, so a request
    /// without its end is given up at once.
    ///
    /// # Panics
    /// When the connection is not closed after the last answer.
    pub fn answers(&self, sent: &[u8], is_tcp: bool) -> Vec<u8> {
        let peer = if is_tcp { Peer::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 1))) } else { Peer::Unix };
        self.runtime.block_on(async {
            let (mut ours, theirs) = tokio::io::duplex(sent.len().max(1 << 16));
            // Not closed here: the server gives up a request whose peer has closed its end.
            ours.write_all(sent).await.expect("there is room");
            self.connections.start(theirs, peer);
            let mut answers = Vec::new();
            ours.read_to_end(&mut answers).await.expect("the pipe does not fail");
            answers
        })
    }
}
