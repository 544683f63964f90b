//! A sandbox with `--restart` whose command fails just before a stop: the end holds for the next life, too.

use super::{EndLimits, EndMethod, EndProgress, StopResult, stop_request};
use crate::resolve::{Resolver, SandboxRef};
use penfold_state::Files;

/// Ends sandboxes in parallel, and returns the result for each, in the order of `targets`.
///
/// Each supervisor gets a request first. If it is dead, does not answer within a second, or does not finish in time,
/// its sandbox is ended directly. `slow` is called repeatedly with the number of sandboxes left. A sandbox that was
/// being restarted does not run again: its next life is ended as well.
pub fn end_sandboxes(
    resolver: &Resolver,
    targets: &[SandboxRef],
    how: EndMethod,
    limits: &EndLimits,
    slow: &mut dyn FnMut(EndProgress),
) -> Vec<StopResult> {
    let results = stop_request::end_by_request(resolver, targets, how, limits, slow);
    // A former life is left alone, as any sandbox that has ended.
    let settled = |(known, result): (&SandboxRef, StopResult)| match result {
        StopResult::Gone if known.restarts => end_next_life(resolver, known, how, limits, slow),
        result => result,
    };
    targets.iter().zip(results).map(settled).collect()
}

/// Takes the restart away from a sandbox that has ended. If its next life has begun, ends that.
fn end_next_life(
    resolver: &Resolver,
    known: &SandboxRef,
    how: EndMethod,
    limits: &EndLimits,
    slow: &mut dyn FnMut(EndProgress),
) -> StopResult {
    let Some(files) = &known.record else { return StopResult::Gone };
    match files.hold_launch() {
        Ok(true) => StopResult::Gone,
        Ok(false) => {
            let fresh = resolver.again();
            let next = begun_in(&fresh, files).or_else(|| next_life(&fresh, &known.id));
            next.and_then(|next| end_sandboxes(&fresh, &[next], how, limits, slow).pop())
                .unwrap_or(StopResult::Gone)
        }
        Err(error) => StopResult::Failed(error),
    }
}

/// Returns the sandbox with this record if a further life has begun in it.
fn begun_in(resolver: &Resolver, files: &Files) -> Option<SandboxRef> {
    let is_held = files.lock().is_held();
    resolver.by_id(files.name()).filter(|next| is_held && next.restarts)
}

/// Finds the restart of a sandbox by an older penfold, which made a new record. Its record has the intent before the launch file, which may have passed to a still later life
/// already.
fn next_life(resolver: &Resolver, id: &str) -> Option<SandboxRef> {
    let registry = resolver.registry()?;
    let is_next = |name: &String| {
        let intent = registry.look(name).ok().flatten().and_then(|files| files.intent().ok());
        let life = intent.and_then(|intent| intent.detached?.life);
        life.is_some_and(|life| life.restart_of == id)
    };
    let name = registry.names().ok()?.into_iter().find(is_next)?;
    resolver.resolve(&name).ok().map(|next| SandboxRef { restarts: true, ..next })
}

#[cfg(test)]
mod tests {
    use penfold_state::intent::Intent;
    use penfold_state::{Id, Registry};

    use super::*;

    /// The intent of a second life, with `--restart`.
    fn life(id: Id, former: Id) -> Intent {
        let intent = serde_json::json!({
            "schema": penfold_state::record::SCHEMA, "id": id, "name": "web", "labels": {}, "command": ["true"],
            "boot": "", "leaf": null, "scratch": null, "made_at_ms": 1,
            "detached": {"remove": false, "restart": {}, "life": {"restart_of": former.short(), "restarts": 1, "failures": 1}}
        });
        serde_json::from_value(intent).unwrap()
    }

    /// spec: 27.5
    #[test]
    fn life_that_begins_is_restarted_before_it_has_its_launch_file() {
        let root = tempfile::tempdir().unwrap();
        let registry = Registry::open(root.path()).unwrap();
        let id = Id::new().unwrap();
        let record = registry.reserve(&life(id, Id::new().unwrap())).unwrap();
        let restarts = || Resolver::new(root.path()).resolve("web").unwrap().restarts;
        assert!(restarts());
        std::fs::write(record.files().path().join("report.json"), "{}").unwrap();
        assert!(!restarts(), "its launch file has passed to a later life");
    }

    /// spec: 27.5, 27.9
    #[test]
    fn next_life_may_have_been_restarted_itself() {
        let root = tempfile::tempdir().unwrap();
        let registry = Registry::open(root.path()).unwrap();
        let [first, second] = [Id::new().unwrap(), Id::new().unwrap()];
        let _record = registry.reserve(&life(second, first)).unwrap();
        let next = next_life(&Resolver::new(root.path()), &first.short()).unwrap();
        // Its launch file is in the record of a later life already.
        assert!(next.id == second.short() && next.restarts);
    }
}
