//! The sandboxes of a server that the arguments select.

use penfold_client::Client;
use penfold_control::{ResolveError, View};

use super::failure;
use crate::args::ids::Ids;
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::find::{self, Among};
use crate::sandboxes::select::{Shown, confirm};

/// The result of a selection.
pub(super) struct Selection {
    /// The sandboxes, each once, in the order of the arguments.
    pub(super) found: Vec<View>,
    /// A failure for each argument that selects no sandbox.
    pub(super) missed: Vec<Failure>,
}

/// Lists the sandboxes of the server; the youngest last.
pub(super) fn list(client: &Client, among: Among) -> Result<Vec<View>, Failure> {
    let found = client.list(among == Among::Every).map_err(failure)?;
    Ok(found.into_iter().map(penfold_api::Sandbox::into_view).collect())
}

/// Finds one sandbox by its id, a prefix of the id, or its name.
pub(super) fn find(client: &Client, word: &str) -> Result<View, Failure> {
    let missing = || Failure::from(ResolveError::NotFound { word: word.to_owned() });
    if word.is_empty() {
        return Err(missing());
    }
    match client.sandbox(word) {
        Ok(sandbox) => Ok(sandbox.into_view()),
        Err(error) if error.problem().is_some_and(|problem| problem.kind() == "not_found") => Err(missing()),
        Err(error) => Err(failure(error)),
    }
}

/// Finds the selected sandboxes, and asks for confirmation as the local verbs do.
pub(super) fn select(
    client: &Client,
    ids: &Ids,
    among: Among,
    force: bool,
    verb: &str,
) -> Result<Selection, Failure> {
    if ids.is_broad() {
        if !ids.words.is_empty() {
            let sentence = "ids cannot be used together with `--all` or `--filter`";
            return Err(Failure::new(FailureKind::Usage, sentence));
        }
        let mut found = list(client, among)?;
        found.retain(|view| view.claimed && ids.filters.match_all(view));
        if !force && !found.is_empty() {
            let shown: Vec<Shown<'_>> = found.iter().map(shown).collect();
            confirm(&shown, verb)?;
        }
        return Ok(Selection { found, missed: Vec::new() });
    }
    let words = find::read_words(&ids.words)?;
    if words.is_empty() && !ids.words.iter().any(|word| word == "-") {
        return Err(Failure::new(FailureKind::Usage, "missing `ID`").hint("`penfold ps` lists the sandboxes"));
    }
    let mut selection = Selection { found: Vec::new(), missed: Vec::new() };
    for word in words {
        match find(client, &word) {
            Ok(view) => {
                let others = if among == Among::Every { older(client, &word, &view)? } else { Vec::new() };
                for view in std::iter::once(view).chain(others) {
                    if !selection.found.iter().any(|other| other.id == view.id) {
                        selection.found.push(view);
                    }
                }
            }
            Err(failure)
                if failure.kind() == FailureKind::NoSuchId || failure.kind() == FailureKind::Ambiguous =>
            {
                selection.missed.push(failure);
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(selection)
}

/// A sandbox as a question or a list shows it.
pub(super) fn shown(view: &View) -> Shown<'_> {
    Shown { id: &view.id, name: view.name.as_deref(), command: view.command_line() }
}

/// The other ended sandboxes with the same name, if `word` is the name of `newest`.
fn older(client: &Client, word: &str, newest: &View) -> Result<Vec<View>, Failure> {
    if newest.name.as_deref() != Some(word) {
        return Ok(Vec::new());
    }
    let mut found = list(client, Among::Every)?;
    found.retain(|view| view.name.as_deref() == Some(word) && !view.status.is_living());
    Ok(found)
}
