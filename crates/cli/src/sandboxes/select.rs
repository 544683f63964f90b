//! Selects the sandboxes that a verb acts on. `--all` and `--filter` need a confirmation.

use penfold_control::{ForgetError, Resolver, SandboxRef, view};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use penfold_process::quoted;

use crate::args::ids::Ids;
use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind};
use crate::output;
use crate::sandboxes::find::{self, Among, Selection};
use crate::text::lines::{self, count};

/// Finds the selected sandboxes. Asks for confirmation if not all of them were named one by one, unless `force`.
///
/// After the answer, every sandbox must still be the one that the question showed.
///
/// # Errors
/// If the arguments name no sandbox, the records cannot be listed, or the answer was not yes.
pub(crate) fn select(
    global: &Global,
    ids: &Ids,
    among: Among,
    force: bool,
    verb: &str,
) -> Result<(Resolver, Selection), Failure> {
    allow_many();
    let resolver = find::resolver(global);
    // A record that root cannot read is damaged: root still ends such a sandbox by its leaf and marker. For any other
    // user the record belongs to somebody else.
    if let Some(error) = resolver.blocked().filter(|_| !rustix::process::geteuid().is_root()) {
        return Err(error.into());
    }
    let mut selection = find::find_all(ids, &resolver, among)?;
    if !ids.is_broad() || force || selection.found.is_empty() {
        return Ok((resolver, selection));
    }
    let shown: Vec<Shown<'_>> = selection.found.iter().map(Shown::of).collect();
    confirm(&shown, verb)?;
    let fresh = resolver.again();
    let shown = std::mem::take(&mut selection.found);
    for known in shown {
        let same = |now: &SandboxRef| now.id == known.id && now.generation() == known.generation();
        match fresh.resolve(&known.id) {
            Ok(now) if same(&now) => selection.found.push(now),
            // The record disappeared during the question: the sandbox counts as gone.
            Err(penfold_control::ResolveError::NotFound { .. }) => selection.found.push(known),
            Ok(_) | Err(_) => {
                let sentence = format!("sandbox {} changed while the question was open", known.id);
                selection.missed.push(Failure::new(FailureKind::Other, sentence));
            }
        }
    }
    Ok((fresh, selection))
}

/// Raises the soft limit of open descriptors to the hard limit: each sandbox needs two.
fn allow_many() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
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

impl<'a> Shown<'a> {
    fn of(known: &'a SandboxRef) -> Shown<'a> {
        let command = known.intent.as_ref().map(|intent| quoted(&intent.command)).unwrap_or_default();
        Shown { id: &known.id, name: known.name.as_deref(), command }
    }

    /// Id, name and command in a line.
    pub(crate) fn line(&self) -> String {
        let Shown { id, name, command } = self;
        format!("{id}  {}  {command}", name.unwrap_or("-"))
    }
}

/// The selected sandboxes that live.
pub(crate) fn living<'a>(resolver: &Resolver, selection: &'a Selection) -> Vec<Shown<'a>> {
    let lives = |known: &&SandboxRef| view::view(resolver, known).is_some_and(|seen| seen.status.is_living());
    selection.found.iter().filter(lives).map(Shown::of).collect()
}

/// The selected sandboxes whose records may be removed, and an error for each that lives, unless `force`.
pub(crate) fn ended<'a>(
    resolver: &Resolver,
    selection: &'a Selection,
    force: bool,
) -> (Vec<Shown<'a>>, Vec<ForgetError>) {
    let (mut doomed, mut refused) = (Vec::new(), Vec::new());
    for known in &selection.found {
        match view::view(resolver, known).map(|seen| seen.status).filter(|status| status.is_living()) {
            Some(status) if !force => refused.push(ForgetError::Living { id: known.id.clone(), status }),
            _ => doomed.push(Shown::of(known)),
        }
    }
    (doomed, refused)
}

/// Asks for confirmation; refuses without a terminal.
///
/// # Errors
/// If the answer was not yes, or nobody can answer.
pub(crate) fn confirm(found: &[Shown<'_>], verb: &str) -> Result<(), Failure> {
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
