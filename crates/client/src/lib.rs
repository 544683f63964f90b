//! A client of penfold's native API: requests and answers over HTTP/1.1, on TCP or a Unix socket; blocking.
//!
//! # Non-goals
//! TLS: a tunnel or a proxy does that. Connections that are kept: each request has its own.
//!
//! # Invariants
//! - A call never hangs on a server that is gone: connections and silent streams have time limits.
//! - A followed log is whole: after a lost connection it goes on at the next byte, or the call fails.
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
mod client;
mod error;
mod event_parser;
mod events;
mod follow;

pub use address::{InvalidHost, ServerAddress};
pub use client::{Client, Method, RECONNECT, encode_base64, encode_word};
pub use error::{Error, Problem};
pub use event_parser::{Event, EventParser, Received};
pub use follow::{Follow, LogEnd, LogEvent, LogFrame, LogRange};
