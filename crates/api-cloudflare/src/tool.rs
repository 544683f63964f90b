//! A program of the host that a route runs beside the shell of a session, with a tree and a time limit of its own.

use std::time::Duration;

use penfold_control::execs::{self, ExecEnd, ExecError};
use penfold_server::records::Outputs;
use penfold_state::error_chain;
use penfold_state::log::LogPosition;

use crate::api::Api;
use crate::end_tree::GRACE;
use crate::error::{ApiError, Code};
use crate::processes::{self, Environment};
use crate::sessions::Session;
use penfold_server::survivors;

/// The most of each stream of a tool that is looked at.
const LARGEST_MESSAGE: usize = 64 << 10;

/// Why a tool has no result.
#[derive(Debug)]
pub(crate) enum ToolError {
    /// The session was deleted, or its shell does not answer.
    Session(ApiError),
    /// The command was not run, or its end was not seen.
    NotRun(String),
    /// Something of it is left.
    Left(ApiError),
}

/// Runs a command with the environment and the directory of the session's shell, and waits until its tree is gone.
///
/// # Errors
/// When it was not run, or something of it is left.
pub(crate) fn run_tool(
    api: &Api,
    session: &Session,
    command: &str,
    env: Environment,
    limit: Duration,
) -> Result<(ExecEnd, Outputs), ToolError> {
    let files = &session.files;
    processes::make_room(api, files);
    let mut start = processes::command_in_session(session, command, env).map_err(ToolError::Session)?;
    start.timeout = Some(limit);
    start.grace = GRACE;
    start.log_limit = api.output_limit();
    let not_run = |error: &ExecError| ToolError::NotRun(error_chain(error));
    let number = execs::start_exec(files, start).map_err(|error| not_run(&error))?.number;
    penfold_sys::crash_point!("serve-tool-started");
    let end = execs::wait_for_exec(files, number, None).map_err(|error| {
        if session.is_ending(&error) { ToolError::Session(session.destroyed()) } else { not_run(&error) }
    })?;
    let Some(end) = end else { return Err(not_run(&ExecError::Unverified { number })) };
    let log = execs::open_exec_log(files, number, LogPosition::Start);
    let outputs = log.map_or_else(|_| Outputs::default(), |log| Outputs::read(log, LARGEST_MESSAGE));
    if end.remaining.is_empty() {
        let _ = execs::remove_exec_record(files, number);
        return Ok((end, outputs));
    }
    let message = format!("something of it is left: {}", survivors::survivors_sentence(&end.remaining));
    let error = ApiError::new(Code::ProcessError, message);
    Err(ToolError::Left(error.with("remaining", survivors::list_survivors(&end.remaining))))
}
