//! The session host: a small program in a sandbox that holds one persistent shell, and the client's side of it.
//!
//! A client sends a command; the host lets bash read it as a script, in the same shell as the commands before. Directory,
//! variables, functions and background jobs persist. Output, end and the shell's state are files of the session, below
//! the record of the sandbox, so a client may come and go.
//!
//! - [`session_host`] — the program: one thread, poll(2), bounded.
//! - [`SessionClient`] — runs commands, waits for their ends, interrupts them, reads their output.
//! - [`protocol`] — the messages between the two.
//!
//! Non-goals: terminals, shells other than bash, containment. The sandbox's supervisor ends all that a session started.
//!
//! Invariants:
//! - the host waits for bash with a deadline, and for no client
//! - a command's end is on disk before any client receives it
//! - output is never held in memory beyond one read

mod bell;
mod client;
mod command;
mod connections;
mod dir;
mod drains;
#[cfg(fuzzing)]
pub mod fuzzing;
mod interrupt;
mod members;
pub mod protocol;
mod script;
pub mod session_host;
mod shell;

pub use client::{SessionClient, SessionClientError};
pub use protocol::{CommandEnd, EndKind, ShellCommand, ShellSnapshot};
