//! `run`: starts a sandbox, and waits until it is ready.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use penfold_control::{EndMethod, Resolver, SandboxRef, StartError, start_detached};
use penfold_request::{OwnerAction, RefusalKind, SandboxSpec, StartRequest};
use penfold_state::error_chain;
use penfold_state::log::LogPosition;
use penfold_state::outcome::ExitStatus;
use serde_json::json;

use super::ports::{listening_members, port_lines};
use super::report::{bounded_report, report_words};
use super::stop::end_one;
use crate::answer::{ToolAnswer, ToolError};
use crate::arguments::{
    RunArguments, check_environment, command_words, duration_of_seconds, whole_milliseconds,
};
use crate::call::Cancel;
use crate::find::{
    exit_json, exit_words, find_sandbox, sandbox_record, sandbox_words, settled_report, view_sandbox,
};
use crate::follow::{Followed, Goal, follow_log};
use crate::host::ServerState;
use crate::log_text::{self, open_log};

/// The time to become ready, unless chosen otherwise, and the longest.
const READY: f64 = 30.0;
const LONGEST_READY: Duration = Duration::from_mins(10);
/// The time for which a command without a condition is watched.
const SETTLE: Duration = Duration::from_secs(1);
/// How much of the first output is shown, and how many of the last lines of a command that has failed.
const FIRST: usize = 8 << 10;
const LAST_LINES: u64 = 50;

pub(super) fn run(host: &ServerState, given: RunArguments, cancel: &Cancel) -> Result<ToolAnswer, ToolError> {
    if given.ready_text.as_deref().is_some_and(|text| text.is_empty() || text.contains('\n')) {
        return Err(ToolError::new("`ready_text` is empty or more than a line"));
    }
    let goal = Goal { text: given.ready_text.clone(), port: given.ready_port, stream: None };
    let conditional = goal.text.is_some() || goal.port.is_some();
    let wait = duration_of_seconds("ready_timeout_s", given.ready_timeout_s.unwrap_or(READY), LONGEST_READY)?;
    let wait = if conditional { wait } else { SETTLE };
    let until = Instant::now() + wait;
    let id = start(host, given)?;
    let known = find_sandbox(&Resolver::new(host.root()), &id)?;
    let mut reader = open_log(sandbox_record(&known)?, LogPosition::Start)?;
    let read = follow_log((host.root(), &known), &mut reader, goal, until, cancel);
    // A failed look ends nothing: the command runs.
    match read.map(|read| read.why) {
        Ok(Followed::Cancelled) => {
            // Nobody will learn of this sandbox.
            end_one(host.root(), &known, EndMethod::Stop { signal: None, grace: None });
            Err(ToolError::new("the call was cancelled, and the sandbox ended"))
        }
        Ok(Followed::Ended) => ended(host, &known, conditional),
        Ok(Followed::Reached) => runs(host, &known, Some(true), wait),
        Ok(Followed::Late) => runs(host, &known, conditional.then_some(false), wait),
        Err(_) => runs(host, &known, None, wait),
    }
}

/// Starts the sandbox; returns its id.
fn start(host: &ServerState, given: RunArguments) -> Result<String, ToolError> {
    let RunArguments {
        command: words,
        shell,
        name,
        cwd,
        env,
        timeout_s,
        ttl_s,
        grace_s,
        // This process waits for it.
        ready_port: _,
        ready_text: _,
        ready_timeout_s: _,
    } = given;
    check_environment(&env)?;
    let spec = SandboxSpec {
        command: command_words(words, shell)?,
        name,
        dir: cwd,
        timeout_ms: whole_milliseconds("timeout_s", timeout_s)?,
        lease_ms: whole_milliseconds("ttl_s", ttl_s)?,
        grace_ms: whole_milliseconds("grace_s", grace_s)?,
        ..SandboxSpec::default()
    };
    // Its supervisor ends it when this process dies. If this process dies before the start, nothing is started.
    let is_owned = !host.config.keep;
    let request = StartRequest {
        spec,
        on_owner_exit: is_owned.then_some(OwnerAction::Stop),
        owner: is_owned.then(|| std::process::id().cast_signed()),
        report: None,
    };
    let mut variables: Vec<(OsString, OsString)> = host
        .config
        .environment
        .iter()
        .filter(|(name, _)| name.to_str().is_none_or(|name| !env.contains_key(name)))
        .cloned()
        .collect();
    variables.extend(env.into_iter().map(|(name, value)| (name.into(), value.into())));
    host.started.add(|| {
        start_detached(&host.config.program, host.root(), &request, &variables).map_err(|error| match error {
            StartError::Refused(refusal) if refusal.kind == RefusalKind::NameTaken => {
                let sentence = refusal.sentence;
                ToolError::new(format!("{sentence}; `stop` that sandbox first, or choose another name"))
            }
            error => ToolError::new(error_chain(&error)),
        })
    })
}

/// The answer for a sandbox that runs.
fn runs(
    host: &ServerState,
    known: &SandboxRef,
    ready: Option<bool>,
    waited: Duration,
) -> Result<ToolAnswer, ToolError> {
    let resolver = Resolver::new(host.root());
    let (known, seen) = view_sandbox(&resolver, &known.id)?;
    if !seen.status.is_living() {
        return ended(host, &known, ready.is_some());
    }
    let ports = listening_members(&resolver, &known, &seen)?;
    let log = log_text::read_from(sandbox_record(&known)?, LogPosition::Start, None, FIRST)?;
    let name = sandbox_words(&known.id, known.name.as_deref());
    let mut text = match ready {
        Some(true) => format!("{name} is ready\n"),
        Some(false) => format!(
            "{name} is not ready after {} s, and still runs: read `logs`, wait with `until`, or `stop` it\n",
            waited.as_secs_f64()
        ),
        None => format!("{name} runs\n"),
    };
    if !ports.is_empty() {
        let _ = write!(text, "it listens on\n{}", port_lines(&ports));
    }
    let _ = write!(text, "its first output:\n{}", log.text);
    if log.more {
        let _ = write!(text, "\n[more output follows at offset {}]", log.next_offset);
    }
    let data = json!({
        "id": known.id, "name": known.name, "status": seen.status, "ready": ready, "ports": ports, "log": log.text,
        "next_offset": log.next_offset, "more": log.more,
    });
    Ok(ToolAnswer::new(text, data))
}

/// The answer for a sandbox that has ended: an error, unless its command did what it should.
fn ended(host: &ServerState, known: &SandboxRef, conditional: bool) -> Result<ToolAnswer, ToolError> {
    let report = settled_report(host.root(), known);
    let log = log_text::read_tail(sandbox_record(known)?, LAST_LINES, None)?;
    let name = sandbox_words(&known.id, known.name.as_deref());
    let exit = report.as_ref().and_then(|report| report.exit);
    let is_verified = report.as_ref().is_some_and(|report| report.findings.verified);
    let before = if conditional { " before it was ready" } else { "" };
    let text = format!(
        "{name}: the command {}{before}\n{}its last output:\n{}",
        exit_words(exit),
        report.as_ref().map(report_words).unwrap_or_default(),
        log.text
    );
    let data = json!({
        "id": known.id, "name": known.name, "status": "ended", "ready": conditional.then_some(false), "ports": [],
        "log": log.text, "next_offset": log.next_offset, "cut_bytes": log.cut, "exit": exit_json(exit),
        "gone": is_verified, "report": report.as_ref().map(bounded_report),
    });
    let is_success = !conditional && exit == Some(ExitStatus::Code(0)) && is_verified;
    Ok(if is_success { ToolAnswer::new(text, data) } else { ToolAnswer::failed(text, data) })
}
