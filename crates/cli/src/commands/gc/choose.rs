//! Selects the leaks that `penfold gc` acts on.

use penfold_control::Resolver;
use penfold_doctor::leaks::{Leak, Survey, Thing, named_sandbox};

use super::GcArgs;
use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind};
use crate::surroundings;

/// The selected leaks, and a failure for each argument that selects none.
pub(super) struct Choice {
    pub(super) leaks: Vec<Leak>,
    pub(super) missed: Vec<Failure>,
}

/// Selects leaks of a survey by the arguments.
pub(super) fn choose(global: &Global, args: &GcArgs, survey: &mut Survey) -> Choice {
    let mut leaks = std::mem::take(&mut survey.leaks);
    leaks.append(&mut survey.kept);
    let mut missed = Vec::new();
    if args.words.is_empty() {
        // Do not mention young records of ended sandboxes: penfold keeps these on purpose.
        leaks.retain(|leak| !matches!(leak.thing, Thing::Ended { .. }) || leak.age() >= args.older_than);
    } else {
        let mut wanted = Vec::new();
        for word in &args.words {
            match resolve(global, &leaks, word) {
                Ok(id) => wanted.push(id),
                Err(failure) => missed.push(failure),
            }
        }
        leaks.retain(|leak| wanted.contains(&leak.id));
    }
    if !args.kinds.is_empty() {
        leaks.retain(|leak| args.kinds.iter().any(|kind| kind == leak.thing.kind()));
    }
    Choice { leaks, missed }
}

/// Resolves an argument to an id: a complete id, the newest leak with this name, or a unique prefix.
fn resolve(global: &Global, leaks: &[Leak], word: &str) -> Result<String, Failure> {
    if let Some(id) = named_sandbox(leaks, word) {
        return Ok(id.to_owned());
    }
    let begins = |id: &&str| !word.is_empty() && id.starts_with(word);
    let mut ids: Vec<&str> = leaks.iter().map(|leak| leak.id.as_str()).filter(begins).collect();
    ids.sort_unstable();
    ids.dedup();
    match ids.as_slice() {
        [id] => Ok((*id).to_owned()),
        [] => Err(not_found(global, word)),
        _ => Err(Failure::new(
            FailureKind::Ambiguous,
            format!("`{word}` matches leaks of {} sandboxes: {}", ids.len(), ids.join(", ")),
        )
        .hint("give more characters, or the whole id")),
    }
}

/// The failure for an argument without a leak: the sandbox lives or does not exist.
fn not_found(global: &Global, word: &str) -> Failure {
    match Resolver::new(&surroundings::root(global)).resolve(word) {
        Ok(known) => {
            let sentence = format!("sandbox {} has a supervisor and is no leak", known.id);
            Failure::new(FailureKind::Usage, sentence).hint(format!("`penfold kill {}` ends it", known.id))
        }
        Err(error) => error.into(),
    }
}
