//! What the verbs share that end sandboxes: the question before the act, and the answer after it.

use std::io::{BufRead as _, IsTerminal as _};
use std::time::Duration;

use penfold_control::{Fate, Finder, Known, Progress};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::args::Global;
use crate::args::ids::{self, Among, Ids, Selection};
use crate::failure::Failure;
use crate::text::lines::{self, count};
use crate::{exit_codes, output};

/// How long a person waits without wondering, and then for the next word.
const WONDER: Duration = Duration::from_millis(300);
const AGAIN: Duration = Duration::from_secs(1);

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
) -> Result<(Finder, Selection), Failure> {
    allow_many();
    let finder = ids::finder(global);
    // What root cannot read is damaged, and ended by what is left of it on the host; for others it is not theirs.
    if let Some(error) = finder.blocked().filter(|_| !rustix::process::geteuid().is_root()) {
        return Err(ids::blocked(error));
    }
    let mut selection = ids.select(&finder, among)?;
    if !ids.is_broad() || force || selection.found.is_empty() {
        return Ok((finder, selection));
    }
    confirm(&selection.found, verb)?;
    let fresh = finder.again();
    let shown = std::mem::take(&mut selection.found);
    for known in shown {
        let same = |now: &Known| now.id == known.id && now.generation() == known.generation();
        match fresh.resolve(&known.id) {
            Ok(now) if same(&now) => selection.found.push(now),
            // It is gone, which is what was wanted.
            Err(penfold_control::ResolveError::NotFound { .. }) => selection.found.push(known),
            Ok(_) | Err(_) => {
                let sentence = format!("sandbox {} is not the one any more that was shown", known.id);
                selection.missed.push(Failure::new(exit_codes::FAILURE, sentence));
            }
        }
    }
    Ok((fresh, selection))
}

/// As many descriptors as this process may have: each sandbox takes two.
pub(crate) fn allow_many() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Asks a person; refuses where there is none.
fn confirm(found: &[Known], verb: &str) -> Result<(), Failure> {
    let number = count(found.len(), "sandbox", "sandboxes");
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        let typed = std::env::args_os().skip(1);
        let typed: Vec<String> = typed.map(|word| word.to_string_lossy().into_owned()).collect();
        let sentence = format!("refused to {verb} {number} without being asked twice");
        return Err(Failure::new(exit_codes::USAGE, sentence)
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
    output::talk(&text);
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    if read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(Failure::new(exit_codes::USAGE, "nothing was done"))
}

/// Tells a person who waits how far things have come.
pub(crate) fn progress(global: &Global, doing: &str) -> impl FnMut(Progress) {
    let watched = !global.quiet && std::io::stderr().is_terminal();
    let doing = doing.to_owned();
    let mut next = WONDER;
    move |progress| {
        if watched && progress.since >= next {
            next = progress.since + AGAIN;
            let left = count(progress.left, "sandbox", "sandboxes");
            output::talk(&format!("penfold: {doing} {left}\n"));
        }
    }
}

/// What has become of several sandboxes, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    data: String,
    code: u8,
}

impl Tally {
    /// Done: the id is all there is to say.
    pub(crate) fn done(&mut self, id: &str) {
        self.data.push_str(id);
        self.data.push('\n');
    }

    /// Done, or why not.
    pub(crate) fn fate(&mut self, id: &str, fate: Fate) {
        match fate {
            Fate::Gone => self.done(id),
            Fate::Left(survivors) => {
                let mut text = String::new();
                for survivor in survivors {
                    lines::push(&mut text, &format!("{id}  not gone: {survivor}"));
                    text.push('\n');
                }
                output::talk(&text);
                self.note(exit_codes::STILL_THERE);
            }
            Fate::Failed(error) => {
                let code = match error.kind() {
                    std::io::ErrorKind::PermissionDenied => exit_codes::NOT_PERMITTED,
                    _ => exit_codes::FAILURE,
                };
                let failure = Failure::new(code, format!("cannot end sandbox {id}")).because(error);
                self.failed(&failure, false);
            }
        }
    }

    /// Not done.
    pub(crate) fn failed(&mut self, failure: &Failure, coloured: bool) {
        self.note(failure.report(coloured));
    }

    /// Tells which words meant nothing.
    pub(crate) fn missed(&mut self, global: &Global, missed: &[Failure]) {
        for failure in missed {
            self.failed(failure, global.color.wanted(&std::io::stderr()));
        }
    }

    /// That something is still there is the worst; else the first failure counts.
    pub(crate) fn note(&mut self, code: u8) {
        if self.code == exit_codes::SUCCESS || code == exit_codes::STILL_THERE {
            self.code = code;
        }
    }

    /// Writes the ids of what was done; gives the exit code.
    ///
    /// # Errors
    /// When standard output cannot be written to.
    pub(crate) fn finish(self) -> Result<u8, Failure> {
        output::data(self.data.as_bytes(), exit_codes::FAILURE)?;
        Ok(self.code)
    }
}
