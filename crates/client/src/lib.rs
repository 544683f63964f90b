//! A client of penfold's native API: requests and answers over HTTP/1.1, on TCP or a Unix socket; blocking.
//!
//! # Non-goals
//! TLS: a tunnel or a proxy does that. Connections that are kept: each request has its own.
//!
//! # Invariants
//! - A call never hangs on a server that is gone: connections and silent streams have time limits.
//! - A followed log is whole: after a lost connection it goes on at the next byte, or the call fails.
//!
//! Without the feature `http` nobody is asked: [`Client::new`] is an error that says so.
//!
//! # Example
//! ```no_run
//! use penfold_client::Client;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new("unix:/run/penfold/penfold.sock".parse()?, None)?;
//! for sandbox in client.list(false)? {
//!     println!("{} {}", sandbox.id, sandbox.command.join(" "));
//! }
//! # Ok(())
//! # }
//! ```

mod address;
mod attach;
#[cfg_attr(not(feature = "http"), path = "no_client.rs")]
mod client;
mod encode;
mod error;
mod event_parser;
#[cfg_attr(not(feature = "http"), path = "no_events.rs")]
mod events;
mod follow;
#[cfg_attr(not(feature = "http"), path = "no_socket.rs")]
mod socket;

pub use address::{InvalidHost, ServerAddress};
pub use attach::Attach;
pub use client::{Client, Method};
pub use encode::{encode_base64, encode_word};
pub use error::{Error, Problem, RECONNECT};
pub use event_parser::{Event, EventParser, Received};
pub use follow::{Follow, LogEnd, LogEvent, LogFrame, LogRange};
pub use socket::TerminalSize;
