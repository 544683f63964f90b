//! Starts terminals.

use std::collections::BTreeMap;

use penfold_control::execs::{self, ExecError};
use penfold_server::execs::discard_exec;
use penfold_server::ids::Spot;
use penfold_state::wire::Size;
use penfold_state::{StartFailure, error_chain};
use rustix::io::Errno;
use serde::Deserialize;

use crate::api::{Api, ApiState};
use crate::end_tree::GRACE;
use crate::error::{ApiError, Code};
use crate::ids::{SessionId, TERMINAL, fresh_id};
use crate::processes::{self, Launch};
use crate::sessions::{self, Session};

use super::control::control_error;
use super::look::{Terminal, observe_terminal};

/// The output that is kept.
const KEPT: u64 = 4 << 20;

/// A terminal to be made.
#[derive(Debug, Deserialize)]
pub(super) struct NewTerminal {
    command: Vec<String>,
    cwd: Option<String>,
    env: Option<BTreeMap<String, String>>,
    cols: Option<u16>,
    rows: Option<u16>,
}

impl NewTerminal {
    /// Starts the terminal and returns once its command runs.
    ///
    /// # Errors
    /// When its command cannot be started.
    pub(super) async fn start(self, api: &ApiState) -> Result<Terminal, ApiError> {
        let NewTerminal { command, cwd, env, cols, rows } = self;
        let characters = |side: Option<u16>, usual| side.filter(|&side| side > 0).unwrap_or(usual);
        let size = Size { rows: characters(rows, 24), columns: characters(cols, 80) };
        let launch = Launch::of_words(command, env.unwrap_or_default(), cwd.clone(), None)?;
        let session = sessions::obtain(api, &SessionId::new(None)?).await?;
        api.wait(move |api| start(api, &session, launch, size, cwd.as_deref().unwrap_or("."))).await
    }
}

fn start(
    api: &Api,
    session: &Session,
    mut launch: Launch,
    size: Size,
    cwd: &str,
) -> Result<Terminal, ApiError> {
    processes::make_room(api, &session.files);
    let id = fresh_id("term");
    let mut start = launch.describe(api, session)?;
    if start.environment.iter().all(|(name, _)| name != "TERM") {
        start.environment.push(("TERM".into(), Some("xterm-256color".into())));
    }
    start.terminal = Some(size);
    start.open_input = true;
    start.grace = GRACE;
    start.log_limit = KEPT;
    start.labels.insert(TERMINAL.to_owned(), id.clone());
    let started = execs::start_exec(&session.files, start).map_err(|error| match error {
        ExecError::StartFailed { number, failure } => {
            discard_exec(&session.files, number, GRACE);
            not_started(&id, &failure, cwd)
        }
        ExecError::Client(_) | ExecError::Unanswered(_) if session.is_ending(&error) => session.destroyed(),
        ExecError::Refused(reason) => ApiError::overload(Code::TerminalControlError, reason),
        error => control_error(&id, "create", &error_chain(&error)),
    })?;
    penfold_sys::crash_point!("serve-rpc-terminal-started");
    if let Some(reserved) = api.terminals.reserve(&id) {
        reserved.settle(Spot { sandbox: session.files.name().to_owned(), number: started.number });
    }
    observe_terminal(api, &id)
}

fn not_started(id: &str, failure: &StartFailure, cwd: &str) -> ApiError {
    match failure {
        StartFailure::NotFound => control_error(id, "create", "there is no such program"),
        StartFailure::Directory(errno) => {
            let reason = Errno::from_raw_os_error(*errno).to_string();
            let message = format!("cannot enter the directory '{cwd}': {reason}");
            let error = ApiError::new(Code::InvalidTerminalCwd, message).with("terminalId", id);
            error.with("cwd", cwd).with("reason", reason)
        }
        StartFailure::NotExecutable(errno) => {
            control_error(id, "create", &Errno::from_raw_os_error(*errno).to_string())
        }
        StartFailure::Other(reason) => control_error(id, "create", reason),
    }
}
