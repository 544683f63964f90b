//! `penfold mcp`, by lines of JSON. `scripts/mcp-test` has the published clients.

pub mod client;
mod ends;
mod protocol;
mod tools;

pub use client::Client;
