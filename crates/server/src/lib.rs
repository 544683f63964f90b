//! `penfold serve`: sandboxes over HTTP.
//!
//! - [`Config`] — all that the server needs to know; the library reads no environment.
//! - [`serve()`] — listens, answers, drains.
//! - [`Dialect`] — an API that the server serves. The dialects are crates above this one: `penfold-api-native` and
//!   `penfold-api-cloudflare`. This crate knows the list that it is given, and none by its name.
//! - [`Tokens`] — whose a caller is. Each tenant is served by parts of its own ([`App`]), which reach its sandboxes only.
//! - [`Engine`] — the calls into penfold, off the runtime.
//! - [`records`], [`execs`], [`sessions`], [`files`], [`watched`], [`ids`] — what more than one dialect needs of sandboxes: typed results and errors,
//!   which each dialect maps to its wire.
//! - [`sent_body`], [`log_stream`] — answers that a thread writes, and logs that it follows.
//! - [`sockets`] — WebSockets. [`dial_jail`] — connections to the ports of a jail.
//! - [`survivors`] — what is left after an end, for an answer.
//! - [`shared_stream`] — one thread for all that follow the same.
//!
//! Invariants:
//! - The server owns nothing. It may be killed at any moment; sandboxes, sessions, logs and exit codes stay as they are.
//! - No thread of the runtime blocks: every call of penfold runs in [`Engine::call`].
//! - The server never forks a supervisor itself: a sandbox is started by executing `penfold run -d`.
//!
//! This is the only library that installs signal handlers and has threads: a server is a program of its own.

mod address;
mod app;
mod auth;
mod caller;
mod config;
mod connections;
mod deleted;
mod descriptors;
mod dial;
mod dialect;
mod drain;
mod engine;
mod error;
pub mod execs;
pub mod files;
mod front;
#[cfg(fuzzing)]
pub mod fuzzing;
mod health;
pub mod ids;
mod limits;
mod listen;
mod locks;
mod log_output;
pub mod log_stream;
mod metrics;
mod no_space;
mod orphans;
mod raw_heads;
pub mod records;
mod refusal;
pub mod sent_body;
mod serve;
pub mod sessions;
pub mod shared_stream;
pub mod sockets;
pub mod survivors;
mod tenants;
mod timed_body;
mod timed_stream;
mod tokens;
pub mod watched;

pub use address::{Address, InvalidAddress};
pub use app::{App, AppState};
pub use auth::refuse_web_pages;
pub use caller::{Peer, RequestId};
pub use config::Config;
pub use deleted::Deleted;
pub use descriptors::{has_descriptors, or_no_descriptors};
pub use dial::{DialError, JAIL_DIAL, dial, dial_jail};
pub use dialect::{Dialect, TokenPlace};
pub use drain::Drain;
pub use engine::{Engine, EngineError, NewSandbox, is_settable};
pub use error::ServeError;
pub use limits::Limits;
pub use listen::{Access, Listener, SocketFile};
pub use log_output::{LogFormat, log_to_standard_error};
pub use metrics::{Metrics, RefusedLabels, RequestLabels};
pub use no_space::is_no_space;
pub use refusal::Refusal;
pub use serve::{ServeEvent, has_terminal, serve};
pub use tokens::{InvalidTokens, ReadTokensError, Tenant, Token, Tokens};
