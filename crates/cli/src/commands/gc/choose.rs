//! Which of the things that were found `penfold gc` is to act on.

use penfold_control::Resolver;
use penfold_control::leaks::{Leak, Survey, Thing};

use super::GcArgs;
use crate::args::ids;
use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind};
use crate::surroundings;

/// What is to be judged, and why a word means nothing of it.
pub(super) struct Choice {
    pub(super) leaks: Vec<Leak>,
    pub(super) missed: Vec<Failure>,
}

/// Takes what the command line means out of a survey.
pub(super) fn choose(global: &Global, args: &GcArgs, survey: &mut Survey) -> Choice {
    let mut leaks = std::mem::take(&mut survey.leaks);
    leaks.append(&mut survey.kept);
    let mut missed = Vec::new();
    if args.words.is_empty() {
        // What is kept on purpose is not worth a word before it is old.
        leaks.retain(|leak| !matches!(leak.thing, Thing::Ended { .. }) || leak.age() >= args.older_than);
    } else {
        let mut wanted = Vec::new();
        for word in &args.words {
            match meant(global, &leaks, word) {
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

/// The id that a word means: a whole id, the newest with this name, the only one that begins like this.
fn meant(global: &Global, leaks: &[Leak], word: &str) -> Result<String, Failure> {
    let shown = ids::as_shown(word);
    let mut found: Vec<&Leak> = leaks.iter().filter(|leak| !leak.id.is_empty() && leak.id == shown).collect();
    if found.is_empty() {
        // What was left behind comes before the kept record of one that has ended.
        let named = leaks.iter().filter(|leak| leak.name.as_deref() == Some(word));
        found.extend(named.min_by_key(|leak| (matches!(leak.thing, Thing::Ended { .. }), leak.age())));
    }
    if found.is_empty() && !word.is_empty() {
        found = leaks.iter().filter(|leak| leak.id.starts_with(word)).collect();
    }
    let mut ids: Vec<&str> = found.iter().map(|leak| leak.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    match ids.as_slice() {
        [id] => Ok((*id).to_owned()),
        [] => Err(none(global, word)),
        _ => Err(Failure::new(
            FailureKind::Ambiguous,
            format!("`{word}` matches what is left of {} sandboxes: {}", ids.len(), ids.join(", ")),
        )
        .hint("give more characters, or the whole id")),
    }
}

/// Nothing is left of what a word means: it lives, or there is none.
fn none(global: &Global, word: &str) -> Failure {
    match Resolver::new(&surroundings::root(global)).resolve(word) {
        Ok(known) => {
            let sentence = format!("sandbox {} is looked after and is no leak", known.id);
            Failure::new(FailureKind::Usage, sentence).hint(format!("`penfold kill {}` ends it", known.id))
        }
        Err(error) => error.into(),
    }
}
