//! `exec`: runs a command in a sandbox, and answers after its whole tree is gone.
//!
//! The exec supervisor ends the tree when its client, this process, closes the connection or dies.

use std::ffi::{CStr, OsString};
use std::fmt::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use penfold_control::execs::{ExecError, ExecReply, exec_reply, send_exec};
use penfold_control::{ANSWER, Resolver, SandboxRef, SupervisorClient, SupervisorClientError};
use penfold_state::record::SCHEMA;
use penfold_state::time::whole_millis;
use penfold_state::wire::ReceiveResult;
use penfold_state::{ExecSpec, Files, Outcome, StartFailure, error_chain};
use penfold_teardown::Cause;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use serde_json::json;

use crate::answer::{ToolAnswer, ToolError};
use crate::arguments::{ExecArguments, check_environment, command_words, duration_of_seconds};
use crate::call::Cancel;
use crate::find::{exit_json, exit_words, find_sandbox, sandbox_record, sandbox_words};
use crate::host::ServerState;
use crate::plain::Bounded;
use crate::tools::report::running_words;

/// The time limit, unless chosen otherwise, and the longest.
const LIMIT: f64 = 60.0;
const LONGEST_LIMIT: Duration = Duration::from_hours(1);
/// The time between the polite signal and SIGKILL after the time limit.
const GRACE: Duration = Duration::from_secs(2);
/// The time after grace and time limit in which the end of the tree must be told.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most bytes of each stream in an answer.
const MOST: usize = 16 << 10;

pub(super) fn exec(
    host: &ServerState,
    given: ExecArguments,
    cancel: &Cancel,
) -> Result<ToolAnswer, ToolError> {
    check_environment(&given.env)?;
    let limit = duration_of_seconds("timeout_s", given.timeout_s.unwrap_or(LIMIT), LONGEST_LIMIT)?;
    let words = command_words(given.command, given.shell)?;
    let known = find_sandbox(&Resolver::new(host.root()), &given.sandbox)?;
    host.may_act("exec", &known)?;
    let spec = ExecSpec {
        schema: SCHEMA,
        command: words.iter().map(OsString::from).collect(),
        environment: given.env.into_iter().map(|(name, value)| (name.into(), Some(value.into()))).collect(),
        directory: given.cwd.map(PathBuf::from),
        timeout_ms: Some(whole_millis(limit)),
        signal: Signal::TERM.as_raw(),
        as_sandbox: true,
        grace_ms: whole_millis(GRACE),
        terminal: false,
        detached: false,
        own_user: false,
        beside: false,
        recorded: None,
    };
    let mut running = Running::start(&known, &spec, words)?;
    let outcome = running.wait(Instant::now() + limit + GRACE + PATIENCE, cancel)?;
    answer(&known, &running, &outcome, limit)
}

/// A command in a sandbox. It ends with this value.
struct Running<'a> {
    client: SupervisorClient,
    files: &'a Files,
    /// The pipes of standard output and standard error, until they are closed.
    pipes: [Option<OwnedFd>; 2],
    output: [Bounded; 2],
}

impl<'a> Running<'a> {
    fn start(known: &'a SandboxRef, spec: &ExecSpec, words: Vec<String>) -> Result<Running<'a>, ToolError> {
        let name = sandbox_words(&known.id, known.name.as_deref());
        let failed = |error: &dyn std::error::Error| {
            ToolError::new(format!("cannot run the command in {name}: {}", error_chain(error)))
        };
        let system = |errno: Errno| failed(&std::io::Error::from(errno));
        let files = sandbox_record(known)?;
        let refused = |error: SupervisorClientError| match error {
            SupervisorClientError::Ended { .. } => {
                ToolError::new(format!("{name} has ended, so no command can run in it"))
            }
            error => failed(&error),
        };
        let client = SupervisorClient::connect(files, ANSWER).map_err(refused)?;
        let null: &CStr = c"/dev/null";
        let input =
            rustix::fs::open(null, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(system)?;
        let (out, out_end) = pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
        let (err, err_end) = pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
        for pipe in [&out, &err] {
            rustix::io::ioctl_fionbio(pipe, true).map_err(system)?;
        }
        let streams = [input.as_fd(), out_end.as_fd(), err_end.as_fd()];
        send_exec(&client, files, spec, words, &streams).map_err(|error| match error {
            ExecError::Client(error) => refused(error),
            error => failed(&error),
        })?;
        let output = [Bounded::both_ends(MOST), Bounded::both_ends(MOST)];
        Ok(Running { client, files, pipes: [Some(out), Some(err)], output })
    }

    /// Takes the output until the end of the tree is told.
    fn wait(&mut self, until: Instant, cancel: &Cancel) -> Result<Outcome, ToolError> {
        loop {
            let message = match self.client.take() {
                Ok(ReceiveResult::Message(message)) => Some(Ok(message)),
                Ok(ReceiveResult::End) => {
                    Some(Err(SupervisorClientError::Gone { id: self.client.id().to_owned() }))
                }
                Ok(ReceiveResult::Nothing) => None,
                Err(error) => Some(Err(error)),
            };
            if let Some(message) = message {
                match exec_reply(self.files, message).map_err(unfinished)? {
                    Some(ExecReply::Ended(outcome)) => {
                        // Nothing of the tree is left that could write more.
                        self.drain();
                        return Ok(*outcome);
                    }
                    _ => continue,
                }
            }
            self.drain();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ToolError::new(
                    "the end of the command was not told in time; it is being killed",
                ));
            }
            let mut fds =
                vec![PollFd::new(&self.client, PollFlags::IN), PollFd::new(cancel, PollFlags::empty())];
            fds.extend(self.pipes.iter().flatten().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
            match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(ToolError::new(format!("cannot wait for the command: {errno}"))),
            }
            if cancel.has_come() {
                return Err(ToolError::new("the call was cancelled, and the command is being killed"));
            }
        }
    }

    /// Takes what the pipes hold.
    fn drain(&mut self) {
        let mut buffer = [0_u8; 8 << 10];
        for (pipe, output) in self.pipes.iter_mut().zip(&mut self.output) {
            while let Some(open) = pipe {
                match rustix::io::read(&*open, &mut buffer) {
                    Ok(0) => *pipe = None,
                    Ok(length) => output.push(buffer.get(..length).unwrap_or_default()),
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Err(_) => *pipe = None,
                }
            }
        }
    }
}

/// Why the end of a command is not known.
fn unfinished(error: ExecError) -> ToolError {
    ToolError::new(match error {
        ExecError::Client(SupervisorClientError::Ended { .. }) => {
            "the sandbox has ended, and the command with it".to_owned()
        }
        ExecError::Refused(reason) => format!("the sandbox runs no command: {reason}"),
        ExecError::Unanswered(SupervisorClientError::Gone { .. }) => {
            "the supervisor of the command is gone, and how the command ended is not known".to_owned()
        }
        ExecError::Client(error) | ExecError::Unanswered(error) => error_chain(&error),
        error => error_chain(&error),
    })
}

fn answer(
    known: &SandboxRef,
    running: &Running<'_>,
    outcome: &Outcome,
    limit: Duration,
) -> Result<ToolAnswer, ToolError> {
    let report = &outcome.report;
    if let Some(failure) = &report.failure {
        let reason = match failure {
            StartFailure::NotFound => "there is no such program".to_owned(),
            StartFailure::NotExecutable(errno) | StartFailure::Directory(errno) => {
                let error = std::io::Error::from_raw_os_error(*errno);
                let place = if matches!(failure, StartFailure::Directory(_)) {
                    "the directory `cwd`"
                } else {
                    "the program"
                };
                format!("{place} cannot be used: {error}")
            }
            StartFailure::Other(sentence) => sentence.clone(),
        };
        return Err(ToolError::new(format!("the command was not run: {reason}")));
    }
    let [out, err] = &running.output;
    let (stdout, stderr) = (out.text(), err.text());
    let timed_out = report.cause == Cause::Timeout;
    let mut text = if timed_out {
        format!("the command was ended after {} s{}\n", limit.as_secs_f64(), running_words(report))
    } else {
        format!("the command {}\n", exit_words(report.exit))
    };
    if outcome.totals.strays > 0 && !timed_out {
        let _ = writeln!(
            text,
            "{} processes that it left in the background were ended; start servers with `run`",
            outcome.totals.strays
        );
    }
    for survivor in &report.findings.survivors {
        let _ = writeln!(text, "not gone: {survivor}");
    }
    if !stdout.is_empty() {
        let _ = writeln!(text, "stdout:\n{stdout}");
    }
    if !stderr.is_empty() {
        let _ = writeln!(text, "stderr:\n{stderr}");
    }
    let data = json!({
        "id": known.id, "exit": exit_json(report.exit), "cause": report.cause, "timed_out": timed_out, "stdout": stdout,
        "stderr": stderr, "stdout_cut_bytes": out.cut(), "stderr_cut_bytes": err.cut(),
        "left_and_ended": outcome.totals.strays, "gone": report.findings.verified,
        "survivors": report.findings.survivors, "running": report.running,
    });
    let failed = timed_out || !report.findings.verified;
    Ok(if failed { ToolAnswer::failed(text, data) } else { ToolAnswer::new(text, data) })
}
