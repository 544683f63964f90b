//! Sessions: persistent shells in a sandbox. A session is held by a host inside the sandbox, which is an exec of the
//! sandbox; the server only talks to it.
//!
//! - [`create_session`], [`list_sessions`], [`find_session`], [`end_session`] — the life of a session.
//! - [`ConnectedSession`] — the commands of one.

mod client;
mod error;
mod place;
mod shell;

pub use client::{CommandState, ConnectedSession};
pub use error::SessionError;
pub use shell::{
    NewSession, SessionEnding, ShellSession, create_session, end_session, find_session, list_sessions,
};
