//! `penfold mcp`: an MCP server on standard input and output, for coding agents.
//!
//! - [`Config`] — all that the server needs to know; the library reads no environment.
//! - [`serve()`] — answers until standard input ends, then ends the sandboxes that it has started.
//!
//! Invariants:
//! - Each sandbox that this server starts has this process as its owner, unless [`Config::keep`] is set. Its supervisor ends it
//!   when this process dies, for whatever reason; nothing here has to run for that.
//! - No thread of the runtime blocks: each call runs on a thread of its own.
//! - An answer is bounded, whatever a sandbox has printed.
//! - Nothing is written to standard output but messages of the protocol, and nothing at all to standard error.

mod answer;
mod arguments;
mod call;
mod config;
mod find;
mod follow;
mod host;
mod log_text;
mod plain;
mod serve;
mod server;
mod started;
mod tool;
mod tools;
mod transport;

pub use config::Config;
pub use serve::{Ended, ServeError, serve};
