//! `penfold serve`: sandboxes over HTTP.
//!
//! - [`Config`] — all that the server needs to know; the library reads no environment.
//! - [`serve()`] — listens, answers, drains.
//! - [`native`] — the API below `/v1`; [`cloudflare`] — the Cloudflare Sandbox API.
//! - [`Engine`] — the calls into penfold, off the runtime.
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
pub mod cloudflare;
mod config;
mod connections;
mod deleted;
mod descriptors;
mod drain;
mod engine;
mod error;
mod front;
#[cfg(fuzzing)]
pub mod fuzzing;
mod health;
mod json_body;
mod limits;
mod listen;
mod log_output;
mod log_stream;
mod metrics;
pub mod native;
mod no_space;
mod orphans;
mod raw_heads;
mod refusal;
mod sent_body;
mod serve;
mod sse;
mod timed_body;
mod timed_stream;
mod tokens;

pub use address::{Address, InvalidAddress};
pub use app::{App, AppState};
pub use caller::{Caller, Peer, RequestId};
pub use config::{Apis, Config};
pub use drain::Drain;
pub use engine::{Engine, EngineError, NewSandbox, is_settable};
pub use error::ServeError;
pub use limits::Limits;
pub use listen::{Access, Listener, SocketFile};
pub use log_output::{LogFormat, log_to_standard_error};
pub use metrics::{Metrics, RefusedLabels, RequestLabels};
pub use serve::{ServeEvent, serve};
pub use tokens::{InvalidTokens, Tokens};
