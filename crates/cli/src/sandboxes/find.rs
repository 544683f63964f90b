//! Finds the sandboxes that the arguments select.

use std::io::BufRead as _;
use std::path::Path;

use penfold_control::view::{self, MemberView};
use penfold_control::{ResolveError, Resolver, SandboxRef, SandboxView};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::Sandboxes;
use crate::args::ids::Ids;
use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::{exit_codes, surroundings};

/// The sandboxes that `--all` and `--filter` consider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    /// Sandboxes that may have live members.
    Living,
    /// Ended sandboxes too; a name then selects all ended sandboxes with this name.
    Every,
}

/// The result of a selection.
#[derive(Debug)]
pub(crate) struct Selection<S> {
    /// The sandboxes, each once, in the order of the arguments.
    pub(crate) found: Vec<S>,
    /// A failure for each argument that selects no sandbox. The verb still acts on the others.
    pub(crate) missed: Vec<Failure>,
}

/// Why a word selects no sandbox.
#[derive(Debug)]
pub(crate) enum Miss {
    /// It means none, or several. Other words may mean one.
    Word(Failure),
    /// The place cannot be asked.
    Place(Failure),
}

impl Miss {
    /// The failure.
    pub(crate) fn into_failure(self) -> Failure {
        match self {
            Miss::Word(failure) | Miss::Place(failure) => failure,
        }
    }
}

/// Finds the selected sandboxes.
///
/// # Errors
/// If the arguments name no sandbox at all (a wrong command line), or the place cannot be asked. A single argument
/// without a sandbox is no error: [`Selection::missed`] has its failure.
pub(super) fn find_all<S: Sandboxes>(
    ids: &Ids,
    sandboxes: &S,
    among: Among,
) -> Result<Selection<S::Sandbox>, Failure> {
    let mut selection = Selection { found: Vec::new(), missed: Vec::new() };
    if ids.is_broad() {
        if !ids.words.is_empty() {
            let sentence = "ids cannot be used together with `--all` or `--filter`";
            return Err(Failure::new(FailureKind::Usage, sentence));
        }
        let found = sandboxes.list(among)?;
        let wanted = found.into_iter().filter(|(_, seen)| seen.claimed && ids.filters.match_all(seen));
        selection.found = wanted.map(|(sandbox, _)| sandbox).collect();
        return Ok(selection);
    }
    let words = read_words(&ids.words)?;
    if words.is_empty() && !ids.words.iter().any(|word| word == "-") {
        return Err(Failure::new(FailureKind::Usage, "missing `ID`").hint("`penfold ps` lists the sandboxes"));
    }
    for word in words {
        let newest = match sandboxes.find(&word) {
            Ok(newest) => newest,
            Err(Miss::Word(failure)) => {
                selection.missed.push(failure);
                continue;
            }
            Err(Miss::Place(failure)) => return Err(failure),
        };
        let older = if among == Among::Every { sandboxes.find_older(&word, &newest)? } else { Vec::new() };
        for sandbox in std::iter::once(newest).chain(older) {
            let id = sandboxes.shown(&sandbox).id;
            if !selection.found.iter().any(|other| sandboxes.shown(other).id == id) {
                selection.found.push(sandbox);
            }
        }
    }
    Ok(selection)
}

/// Lists sandboxes with their views.
///
/// # Errors
/// If the records cannot be read.
pub(crate) fn list(resolver: &Resolver, among: Among) -> Result<Vec<(SandboxRef, SandboxView)>, Failure> {
    if let Some(error) = resolver.blocked() {
        return Err(error.into());
    }
    allow_many();
    view::select_sandboxes(resolver, among == Among::Every)
        .or_fail(FailureKind::Other, "cannot list the sandboxes")
}

/// Raises the soft limit of open descriptors to the hard limit: a list holds one for each sandbox, and an end two.
pub(super) fn allow_many() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// The named sandboxes with their views.
#[derive(Debug)]
pub(crate) struct ChosenSandboxes<S> {
    /// The sandboxes in the order of the arguments.
    pub(crate) found: Vec<(S, SandboxView)>,
    /// The exit code of the first argument that selects no sandbox, else success.
    pub(crate) exit: u8,
}

/// Views the named sandboxes; prints a failure for each argument that selects none.
///
/// # Errors
/// If standard input cannot be read.
pub(crate) fn choose<S: Sandboxes>(
    global: &Global,
    sandboxes: &S,
    ids: &[String],
) -> Result<ChosenSandboxes<S::Sandbox>, Failure> {
    let mut chosen: ChosenSandboxes<S::Sandbox> =
        ChosenSandboxes { found: Vec::new(), exit: exit_codes::SUCCESS };
    let coloured = global.color.wanted(&std::io::stderr());
    for word in read_words(ids)? {
        let seen = sandboxes.find(&word).map_err(Miss::into_failure).and_then(|sandbox| {
            let view = sandboxes.view(&sandbox);
            view.map(|view| (sandbox, view)).ok_or_else(|| ResolveError::NotFound { word }.into())
        });
        match seen {
            Ok((_, view)) if chosen.found.iter().any(|(_, other)| other.id == view.id) => {}
            Ok(found) => chosen.found.push(found),
            Err(failure) => {
                let exit = failure.report(coloured);
                if chosen.exit == exit_codes::SUCCESS {
                    chosen.exit = exit;
                }
            }
        }
    }
    Ok(chosen)
}

/// The resolver for the state root of this call.
pub(crate) fn resolver(global: &Global) -> Resolver {
    Resolver::new(Path::new(&surroundings::root(global)))
}

/// Replaces `-` by the words on standard input.
pub(crate) fn read_words(ids: &[String]) -> Result<Vec<String>, Failure> {
    let mut words = Vec::new();
    for id in ids {
        if id != "-" {
            words.push(id.clone());
            continue;
        }
        for line in std::io::stdin().lock().lines() {
            let line = line.or_fail(FailureKind::Other, "cannot read standard input")?;
            words.extend(line.split_whitespace().map(str::to_owned));
        }
    }
    Ok(words)
}

/// The processes of one sandbox; `full` also reads their command lines.
///
/// # Errors
/// If the processes cannot be listed.
pub(crate) fn members(
    resolver: &Resolver,
    known: &SandboxRef,
    seen: &SandboxView,
    full: bool,
) -> Result<Vec<MemberView>, Failure> {
    if !seen.status.is_living() {
        return Ok(Vec::new());
    }
    view::list_members(resolver, known, seen, full)
        .or_fail(FailureKind::Other, "cannot list the processes of the sandbox")
}
