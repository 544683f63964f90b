//! Processes: recorded execs in the sandbox of a session, each with a tree and a kill of its own.

mod claim;
mod follow;
mod kill;
mod labels;
mod launch;
mod look;
mod routes;
mod script;
mod status;
mod words;

pub(crate) use launch::{Launch, command_in_session, make_room};
pub(crate) use look::{Watched, watched_process};
pub(crate) use routes::{answer_start, answer_stream, routes};
pub(crate) use script::{Environment, plain_command};
pub(crate) use status::code_of;
pub(crate) use words::{directory_of, word_routes, words_of};
