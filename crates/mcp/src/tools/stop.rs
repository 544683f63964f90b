//! `stop`: ends a sandbox, and answers after it was seen gone.

use std::fmt::Write as _;
use std::path::Path;

use penfold_control::{EndLimits, EndMethod, Resolver, SandboxRef, StopResult, end_sandboxes};
use penfold_state::error_chain;
use penfold_teardown::Survivor;
use serde_json::json;

use super::report::{bounded_report, report_words};
use crate::answer::{ToolAnswer, ToolError};
use crate::arguments::{StopArguments, whole_milliseconds};
use crate::find::{sandbox_words, view_sandbox};
use crate::host::ServerState;

pub(super) fn stop(host: &ServerState, given: &StopArguments) -> Result<ToolAnswer, ToolError> {
    let grace = whole_milliseconds("grace_s", given.grace_s)?.map(std::time::Duration::from_millis);
    let (known, seen) = view_sandbox(&Resolver::new(host.root()), &given.sandbox)?;
    host.may_act("stop", &known)?;
    let name = sandbox_words(&known.id, known.name.as_deref());
    let was_gone = !seen.status.is_living();
    let method = if given.force { EndMethod::Kill } else { EndMethod::Stop { signal: None, grace } };
    match end_one(host.root(), &known, method) {
        StopResult::Gone => {
            let report = known.record.as_ref().and_then(|files| files.report().ok().flatten());
            let done = if was_gone { "had ended before" } else { "is gone" };
            let details = report.as_ref().map(report_words).unwrap_or_default();
            let report = report.as_ref().map(bounded_report);
            let data = json!({ "id": known.id, "name": known.name, "gone": true, "was_gone": was_gone, "report": report });
            Ok(ToolAnswer::new(format!("{name} {done}\n{details}"), data))
        }
        StopResult::Left(survivors) => {
            let mut text = format!("something of {name} is left, and is still being ended\n");
            for survivor in &survivors {
                let _ = writeln!(text, "not gone: {survivor}");
            }
            let data = json!({ "id": known.id, "name": known.name, "gone": false, "survivors": survivors });
            Ok(ToolAnswer::failed(text, data))
        }
        StopResult::Failed(error) => {
            Err(ToolError::new(format!("cannot end {name}: {}", error_chain(&error))))
        }
    }
}

/// Ends one sandbox.
pub(super) fn end_one(root: &Path, known: &SandboxRef, method: EndMethod) -> StopResult {
    let targets = std::slice::from_ref(known);
    let mut results =
        end_sandboxes(&Resolver::new(root), targets, method, &EndLimits::default(), &mut |_| {});
    results.pop().unwrap_or_else(|| StopResult::Failed(std::io::Error::other("its end was not looked for")))
}

/// Stops sandboxes at the same time; returns what is left of each that is not gone.
pub(crate) fn stop_all(root: &Path, ids: &[String]) -> Vec<(String, Vec<Survivor>)> {
    let resolver = Resolver::new(root);
    // One that is not found has gone, with its record.
    let targets: Vec<SandboxRef> = ids.iter().filter_map(|id| resolver.resolve(id).ok()).collect();
    let method = EndMethod::Stop { signal: None, grace: None };
    let results = end_sandboxes(&resolver, &targets, method, &EndLimits::default(), &mut |_| {});
    let left = targets.iter().zip(results).filter_map(|(known, result)| match result {
        StopResult::Gone => None,
        StopResult::Left(survivors) => Some((known.id.clone(), survivors)),
        StopResult::Failed(error) => {
            Some((known.id.clone(), vec![Survivor::Unknown { reason: error_chain(&error) }]))
        }
    });
    left.collect()
}
