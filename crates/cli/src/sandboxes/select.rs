//! Chooses the sandboxes that a verb acts on, and asks before it acts on more than were named.

use penfold_control::{Resolver, SandboxRef};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::args::ids::Ids;
use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind};
use crate::output;
use crate::sandboxes::find::{self, Among, Selection};
use crate::text::lines::{self, count};

/// Finds what is meant. More than what is named one by one is asked about first, unless `force`; what was shown must
/// then still be the same.
///
/// # Errors
/// When nothing is named, the records cannot be listed, or the question was not answered with yes.
pub(crate) fn select(
    global: &Global,
    ids: &Ids,
    among: Among,
    force: bool,
    verb: &str,
) -> Result<(Resolver, Selection), Failure> {
    allow_many();
    let resolver = find::resolver(global);
    // What root cannot read is damaged, and ended by what is left of it on the host; for others it is not theirs.
    if let Some(error) = resolver.blocked().filter(|_| !rustix::process::geteuid().is_root()) {
        return Err(error.into());
    }
    let mut selection = find::find_all(ids, &resolver, among)?;
    if !ids.is_broad() || force || selection.found.is_empty() {
        return Ok((resolver, selection));
    }
    confirm(&selection.found, verb)?;
    let fresh = resolver.again();
    let shown = std::mem::take(&mut selection.found);
    for known in shown {
        let same = |now: &SandboxRef| now.id == known.id && now.generation() == known.generation();
        match fresh.resolve(&known.id) {
            Ok(now) if same(&now) => selection.found.push(now),
            // It is gone, which is what was wanted.
            Err(penfold_control::ResolveError::NotFound { .. }) => selection.found.push(known),
            Ok(_) | Err(_) => {
                let sentence = format!("sandbox {} is not the one any more that was shown", known.id);
                selection.missed.push(Failure::new(FailureKind::Other, sentence));
            }
        }
    }
    Ok((fresh, selection))
}

/// As many descriptors as this process may have: each sandbox takes two.
fn allow_many() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Asks a person; refuses where there is none.
fn confirm(found: &[SandboxRef], verb: &str) -> Result<(), Failure> {
    let number = count(found.len(), "sandbox", "sandboxes");
    if !output::can_ask() {
        let typed = std::env::args_os().skip(1);
        let typed: Vec<String> = typed.map(|word| word.to_string_lossy().into_owned()).collect();
        let sentence = format!("refused to {verb} {number} without being asked twice");
        return Err(Failure::new(FailureKind::Usage, sentence)
            .hint(format!("`penfold {} -f` does it", typed.join(" "))));
    }
    let mut text = String::new();
    for known in found {
        let name = known.name.as_deref().unwrap_or("-");
        let command = known.intent.as_ref().map(|intent| intent.command.join(" ")).unwrap_or_default();
        lines::push(&mut text, &format!("  {}  {name}  {command}", known.id));
        text.push('\n');
    }
    lines::push(&mut text, &format!("Really {verb} {number}? [y/N] "));
    if output::ask(&text) {
        return Ok(());
    }
    Err(Failure::new(FailureKind::Usage, "nothing was done"))
}
