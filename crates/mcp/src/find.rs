//! Finds the sandbox that a call names, and describes its end.

use std::path::Path;
use std::time::Duration;

use penfold_control::{Resolver, SandboxRef, SandboxView, view, wait_for_sandboxes};
use penfold_state::outcome::ExitStatus;
use penfold_state::{Files, Report, cause_clause, error_chain};
use penfold_teardown::Cause;
use serde_json::{Value, json};

use crate::answer::ToolError;

/// The time that the supervisors of a sandbox have to exit after its end was seen.
const SETTLE: Duration = Duration::from_secs(30);

/// Finds a sandbox.
///
/// # Errors
/// When there is none with this id or name, or several.
pub(crate) fn find_sandbox(resolver: &Resolver, word: &str) -> Result<SandboxRef, ToolError> {
    resolver
        .resolve(word)
        .map_err(|error| ToolError::new(format!("{}; `ps` lists the sandboxes", error_chain(&error))))
}

/// Finds a sandbox and looks at it.
///
/// # Errors
/// As [`find_sandbox`], and when it is gone by then.
pub(crate) fn view_sandbox(resolver: &Resolver, word: &str) -> Result<(SandboxRef, SandboxView), ToolError> {
    let known = find_sandbox(resolver, word)?;
    let seen = view::observe_sandbox(resolver, &known);
    seen.map(|seen| (known, seen))
        .ok_or_else(|| ToolError::new(format!("sandbox `{word}` is just being made or removed; try again")))
}

/// The record of a sandbox.
///
/// # Errors
/// When the record is gone.
pub(crate) fn sandbox_record(known: &SandboxRef) -> Result<&Files, ToolError> {
    known.record.as_ref().ok_or_else(|| ToolError::new(format!("the record of sandbox {} is gone", known.id)))
}

/// How a sandbox is called in a sentence.
pub(crate) fn sandbox_words(id: &str, name: Option<&str>) -> String {
    name.map_or_else(|| format!("sandbox {id}"), |name| format!("sandbox {name} ({id})"))
}

/// The report of a sandbox whose end was seen. Waits until its supervisors have exited.
pub(crate) fn settled_report(root: &Path, known: &SandboxRef) -> Option<Report> {
    let resolver = Resolver::new(root);
    wait_for_sandboxes(&resolver, std::slice::from_ref(known), false, Some(SETTLE), &mut |_| {});
    known.record.as_ref()?.report().ok().flatten()
}

/// An exit as JSON, with the code as a shell has it.
pub(crate) fn exit_json(exit: Option<ExitStatus>) -> Value {
    match exit {
        None => Value::Null,
        Some(ExitStatus::Code(code)) => json!({ "code": code }),
        Some(exit @ ExitStatus::Signal(signal)) => json!({ "code": exit.shell_code(), "signal": signal }),
    }
}

/// How a command ended, for a sentence.
pub(crate) fn exit_words(exit: Option<ExitStatus>) -> String {
    match exit {
        None => "ended in an unknown way".to_owned(),
        Some(ExitStatus::Code(code)) => format!("exited with {code}"),
        Some(ExitStatus::Signal(signal)) => format!("was ended by signal {signal}"),
    }
}

/// Why a sandbox ended, for a sentence; `None` if its command ended by itself.
pub(crate) fn cause_words(cause: Cause) -> Option<&'static str> {
    match cause {
        Cause::Stop => Some("it was stopped"),
        Cause::Kill => Some("it was killed"),
        cause => cause_clause(cause),
    }
}
