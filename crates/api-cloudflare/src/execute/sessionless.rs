//! A command without a session: `bash -c` in a tree of its own.

use std::time::Duration;

use penfold_control::execs::{self, ExecError};
use penfold_server::survivors;
use penfold_state::exit_codes::TIMED_OUT;
use penfold_state::log::LogPosition;
use penfold_state::{Files, StartFailure};
use penfold_teardown::Cause;

use crate::answer::RouteResult;
use crate::api::ApiState;
use crate::error::{ApiError, Code};
use crate::ids::SessionId;
use crate::processes::code_of;
use crate::{end_tree, processes, sessions};

use super::Wanted;
use super::output::Done;

/// The time between SIGTERM and SIGKILL at the time limit.
const GRACE: Duration = Duration::from_secs(1);

/// Runs a command in the sandbox of the commands without a session, and answers when its tree is gone.
pub(super) async fn execute(api: &ApiState, id: &SessionId, wanted: Wanted) -> RouteResult {
    let sandbox = sessions::obtain(api, id).await?;
    let limit = api.output_limit();
    api.run(move |api| {
        // Commands whose server was killed.
        processes::make_room(api, &sandbox.files);
        run(&sandbox.files, wanted, limit)
    })
    .await?
    .answer()
}

fn run(files: &Files, wanted: Wanted, limit: u64) -> Result<Done, ApiError> {
    let Wanted { command, env, cwd, timeout_ms } = wanted;
    let mut start = processes::plain_command(&command, env).map_err(|error| ApiError::internal(&error))?;
    start.directory = cwd.as_ref().map(Into::into);
    start.timeout = timeout_ms.map(Duration::from_millis);
    start.grace = GRACE;
    start.log_limit = limit;
    let failed = |error: &dyn std::error::Error| {
        let why = penfold_state::error_chain(error);
        ApiError::new(Code::CommandExecutionError.or_no_space(&why), why).with("command", command.as_str())
    };
    let mut done = Done {
        command: command.clone(),
        session: SessionId::none().as_str().to_owned(),
        code: 1,
        logs: None,
        stderr: String::new(),
        bytes: Some(0),
        truncated_bytes: 0,
        more: Vec::new(),
    };
    let number = match execs::start_exec(files, start) {
        Ok(started) => started.number,
        Err(ExecError::StartFailed { number, failure: StartFailure::Directory(_) }) => {
            penfold_server::execs::discard_exec(files, number, end_tree::GRACE);
            done.stderr = format!("Failed to change directory to '{}'", cwd.unwrap_or_default());
            return Ok(done);
        }
        Err(error) => return Err(failed(&error)),
    };
    let log = || execs::open_exec_log(files, number, LogPosition::Start).map_err(|error| failed(&error));
    done.logs = Some([log()?, log()?]);
    done.bytes = None;
    penfold_sys::crash_point!("serve-sessionless-started");
    let end = execs::wait_for_exec(files, number, None).map_err(|error| failed(&error))?;
    penfold_sys::crash_point!("serve-sessionless-ended");
    let Some(end) = end else { return Err(failed(&ExecError::Unverified { number })) };
    done.code = if end.cause == Some(Cause::Timeout) {
        done.stderr = format!("Command timed out after {}ms", timeout_ms.unwrap_or_default());
        i32::from(TIMED_OUT)
    } else {
        code_of(end.exit)
    };
    if !end.remaining.is_empty() {
        tracing::warn!(command = done.command, left = end.remaining.len(), "a command is not gone");
        done.more.push(("remaining", survivors::list_survivors(&end.remaining)));
    }
    // Its open log stays readable.
    let _ = execs::remove_exec_record(files, number);
    Ok(done)
}
