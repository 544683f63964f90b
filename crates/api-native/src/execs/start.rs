//! Starts an exec.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penfold_control::execs::{self, ExecStart};
use penfold_server::AppState;
use penfold_server::execs::{FindExecError, input_file, make_room};
use penfold_server::records::{Outputs, find_record};
use penfold_state::log::LogPosition;
use penfold_state::wire::Size;
use penfold_state::{Files, error_chain};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::Exec;
use super::problems::exec_problem;
use crate::extract::{Json, Path, Query};
use crate::log_answer::too_many;
use crate::model::TerminalSize;
use crate::output::{LARGEST_OUTPUT, Output};
use crate::problem::{Kind, Problem};
use crate::routes::{Routes, routes};
use crate::signal::parse_signal;
use crate::valid;

pub(super) fn routes() -> Routes {
    Routes::new().routes(routes!(create))
}

/// A command to run in a sandbox.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateExec {
    /// The program and its arguments.
    #[schema(example = json!(["npm", "test"]), min_items = 1)]
    command: Vec<String>,
    /// Changes to the environment of the sandbox; null removes a variable.
    #[serde(default)]
    env: BTreeMap<String, Option<String>>,
    /// The directory in which the command starts; default: that of the sandbox.
    dir: Option<String>,
    /// The standard input, as text.
    stdin: Option<String>,
    /// The standard input, in Base64.
    stdin_base64: Option<String>,
    /// Keep the input open: clients write into it with `attach`. Not together with `stdin`.
    #[serde(default)]
    open_input: bool,
    /// The time limit in milliseconds.
    timeout_ms: Option<u64>,
    /// The polite signal; default: that of the sandbox.
    signal: Option<String>,
    /// The time in milliseconds between the polite signal and SIGKILL.
    grace_ms: Option<u64>,
    /// Labels; a value has at most 256 bytes. Keys that begin with `penfold.` are those of the server.
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// The size of the log in bytes; a full log drops the oldest output.
    log_size: Option<u64>,
    /// The size of the terminal, if the command gets one.
    terminal: Option<TerminalSize>,
}

impl CreateExec {
    fn check(self) -> Result<ExecStart, Problem> {
        valid::valid_command("command", &self.command)?;
        valid::valid_labels(&self.labels)?;
        let mut start = ExecStart::new(self.command);
        for (key, value) in self.env {
            valid::valid_environment(&BTreeMap::from([(key.clone(), value.clone().unwrap_or_default())]))?;
            start.environment.push((key.into(), value.map(OsString::from)));
        }
        if let Some(dir) = self.dir {
            valid::valid_text("dir", &dir)?;
            start.directory = Some(PathBuf::from(dir));
        }
        let input = match (self.stdin, self.stdin_base64) {
            (Some(_), Some(_)) => return Err(Problem::field("stdin_base64", "not together with `stdin`")),
            (Some(text), None) => Some(text.into_bytes()),
            (None, Some(text)) => {
                Some(STANDARD.decode(text).map_err(|error| Problem::field("stdin_base64", error))?)
            }
            (None, None) => None,
        };
        if self.terminal.is_some() && input.is_some() {
            return Err(Problem::field("stdin", "not together with `terminal`"));
        }
        if self.open_input && input.is_some() {
            return Err(Problem::field("open_input", "not together with `stdin`"));
        }
        start.open_input = self.open_input;
        start.stdin = input.map(|input| input_file(&input)).transpose().map_err(|error| {
            Problem::new(Kind::Internal, format!("cannot keep the input: {}", error_chain(&error)))
        })?;
        start.timeout = self.timeout_ms.map(|ms| valid::valid_time("timeout_ms", ms)).transpose()?;
        start.signal = self
            .signal
            .map(|text| parse_signal("signal", &text))
            .transpose()?
            .map(rustix::process::Signal::as_raw);
        if let Some(ms) = self.grace_ms {
            start.grace = valid::valid_time("grace_ms", ms)?;
        }
        if let Some(size) = self.log_size {
            if size > valid::LARGEST_LOG {
                return Err(Problem::field("log_size", "larger than 64 GiB"));
            }
            start.log_limit = size;
        }
        start.labels = self.labels;
        start.terminal = self.terminal.map(|size| Size { rows: size.rows, columns: size.columns });
        Ok(start)
    }
}

/// Whether to wait.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StartQuery {
    /// 1: answer once everything that the exec started was observed gone, with its exit and its output.
    #[param(minimum = 0, maximum = 1)]
    wait: Option<u8>,
}

impl StartQuery {
    fn waits(&self) -> Result<bool, Problem> {
        match self.wait {
            Some(1) => Ok(true),
            None | Some(0) => Ok(false),
            Some(_) => Err(Problem::field("wait", "neither 0 nor 1")),
        }
    }
}

/// Starts a command in a running sandbox. The answer comes once the command runs; with `?wait=1` once everything that it started is gone,
/// with its exit and its output. A client that goes away does not end the command.
#[utoipa::path(
    post, path = "/sandboxes/{id}/execs", tag = "execs", operation_id = "createExec",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name"), StartQuery),
    request_body = CreateExec,
    responses(
        (status = 200, description = "everything that the exec started is gone", body = Exec),
        (status = 201, description = "the command runs", body = Exec),
        Problem,
    )
)]
async fn create(
    State(app): State<AppState>,
    Path(id): Path<String>,
    Query(query): Query<StartQuery>,
    Json(request): Json<CreateExec>,
) -> Result<Response, Problem> {
    let waits = query.waits()?;
    // Before anything starts: a command that nobody can wait for would run all the same.
    let place = if waits { Some(app.engine.follower().ok_or_else(too_many)?) } else { None };
    let start = request.check()?;
    let created = app.engine.call(move |scope| {
        let files = find_record(scope, &id)?;
        make_room(&files);
        penfold_sys::crash_point!("serve-exec-wanted");
        let started =
            execs::start_exec(&files, start).map_err(|error| exec_problem(error).beside_end(&files))?;
        penfold_sys::crash_point!("serve-exec-started");
        let number = started.number;
        let missing = || Problem::from(FindExecError::Missing { number, id: files.name().to_owned() });
        let view = execs::find_exec(&files, number).ok().flatten();
        let view = view.ok_or_else(|| missing().beside_end(&files))?;
        // The answer comes after the end, perhaps after that of many younger ones.
        let held = if waits { execs::hold_exec_record(&files, number).ok().flatten() } else { None };
        Ok::<_, Problem>((files, Exec::from(view), held))
    });
    let (files, exec, held) = created.await??;
    let (id, number) = (files.name().to_owned(), exec.number);
    let location = HeaderValue::from_str(&format!("/v1/sandboxes/{id}/execs/{number}")).ok();
    let (status, exec) = match place {
        None => (StatusCode::CREATED, exec),
        Some(place) => {
            // Dropped with this answer, also when the client goes away.
            let asker = Arc::new(());
            let seen_by_wait = Arc::downgrade(&asker);
            let waiting = app.engine.wait(place, move |_| finish(&files, exec, held, &seen_by_wait));
            tokio::select! {
                ended = waiting => (StatusCode::OK, ended??),
                () = app.drain.begun() => {
                    return Err(Problem::new(Kind::Draining, format!("the server ends; exec {number} goes on")));
                }
            }
        }
    };
    let mut response = (status, axum::Json(exec)).into_response();
    response.headers_mut().extend(location.map(|location| (header::LOCATION, location)));
    Ok(response)
}

/// The time after which it is noticed that nobody waits for an exec any more.
const LOOK: Duration = Duration::from_secs(1);

/// Waits for the end of an exec, and reads its output. Gives up once nobody asks for it.
fn finish(files: &Files, exec: Exec, held: Option<OwnedFd>, asker: &Weak<()>) -> Result<Exec, Problem> {
    let number = exec.number;
    let end = loop {
        let looked = execs::wait_for_exec(files, number, Some(Instant::now() + LOOK));
        match looked.map_err(|error| exec_problem(error).beside_end(files))? {
            Some(end) => break end,
            None if asker.strong_count() == 0 => {
                return Err(Problem::new(Kind::Internal, "nobody waits for the exec any more"));
            }
            None => {}
        }
    };
    // From the first byte that was written, so that dropped ones are noticed.
    let log = execs::open_exec_log(files, number, LogPosition::Offset(0));
    let outputs = log.map_or_else(|_| Outputs::default(), |log| Outputs::read(log, LARGEST_OUTPUT));
    drop(held);
    Ok(Exec {
        status: if end.remaining.is_empty() { "ended" } else { exec.status },
        exit: end.exit,
        cause: end.cause,
        ended_at_ms: end.ended_at_ms,
        remaining: end.remaining,
        report: end.report,
        stdout: Some(Output::of(outputs.stdout, outputs.has_all_stdout)),
        stderr: Some(Output::of(outputs.stderr, outputs.has_all_stderr)),
        ..exec
    })
}
