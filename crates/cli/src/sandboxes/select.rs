//! Selects the sandboxes that a verb acts on. `--all` and `--filter` need a confirmation.

use crate::args::ids::Ids;
use crate::failure::{Failure, FailureKind};
use crate::output;
use crate::sandboxes::Sandboxes;
use crate::sandboxes::find::{self, Among, Selection};
use crate::text::lines::{self, count};

/// Finds the selected sandboxes. Asks for confirmation if not all of them were named one by one, unless `force`.
///
/// After the answer, every sandbox must still be the one that the question showed.
///
/// # Errors
/// If the arguments name no sandbox, the place cannot be asked, or the answer was not yes.
pub(crate) fn select<S: Sandboxes>(
    sandboxes: &mut S,
    ids: &Ids,
    among: Among,
    force: bool,
    verb: &str,
) -> Result<Selection<S::Sandbox>, Failure> {
    let mut selection = find::find_all(ids, sandboxes, among)?;
    if ids.is_broad() && !force && !selection.found.is_empty() {
        let shown: Vec<Shown<'_>> = selection.found.iter().map(|one| sandboxes.shown(one)).collect();
        confirm(&shown, verb)?;
        sandboxes.look_again(&mut selection);
    }
    Ok(selection)
}

/// A sandbox as the question shows it.
#[derive(Debug)]
pub(crate) struct Shown<'a> {
    /// The id.
    pub(crate) id: &'a str,
    /// The name.
    pub(crate) name: Option<&'a str>,
    /// The command.
    pub(crate) command: String,
}

impl Shown<'_> {
    /// Id, name and command in a line.
    pub(crate) fn line(&self) -> String {
        let Shown { id, name, command } = self;
        format!("{id}  {}  {command}", name.unwrap_or("-"))
    }
}

/// Those of the selected sandboxes that live.
pub(crate) fn living<'a, S: Sandboxes>(sandboxes: &S, found: &'a [S::Sandbox]) -> Vec<Shown<'a>> {
    let lives = |one: &&S::Sandbox| sandboxes.view(one).is_some_and(|seen| seen.status.is_living());
    found.iter().filter(lives).map(|one| sandboxes.shown(one)).collect()
}

/// Asks for confirmation; refuses without a terminal.
///
/// # Errors
/// If the answer was not yes, or nobody can answer.
fn confirm(found: &[Shown<'_>], verb: &str) -> Result<(), Failure> {
    let number = count(found.len(), "sandbox", "sandboxes");
    if !output::can_ask() {
        let typed = std::env::args_os().skip(1);
        let typed: Vec<String> = typed.map(|word| word.to_string_lossy().into_owned()).collect();
        let sentence = format!("refused to {verb} {number} without confirmation");
        return Err(Failure::new(FailureKind::Usage, sentence)
            .hint(format!("`penfold {} -f` does it", typed.join(" "))));
    }
    let mut text = String::new();
    for shown in found {
        lines::push(&mut text, &format!("  {}", shown.line()));
        text.push('\n');
    }
    lines::push(&mut text, &format!("Really {verb} {number}? [y/N] "));
    if output::ask(&text) {
        return Ok(());
    }
    Err(Failure::new(FailureKind::Usage, "no sandbox was changed: the answer was not `y`"))
}
