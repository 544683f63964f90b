//! Which sandboxes are meant: ids, names, `-`, `--all` and `--filter`, the same for every verb that takes several.

use std::io::BufRead as _;
use std::path::Path;

use clap::Args;
use penfold_control::{Finder, Known, ResolveError, View, view};
use penfold_state::state::Word;
use penfold_state::{Id, StateError};

use crate::exit_codes;
use crate::failure::Failure;
use crate::text::template::{STOPPED, is_stopped};
use crate::value::Invalid;

/// Which sandboxes are meant; a verb flattens it into its own flags.
#[derive(Args, Clone, Debug)]
pub(crate) struct Ids {
    /// Ids, unique beginnings of ids, or names; `-` reads them from standard input.
    #[arg(value_name = "ID")]
    pub(crate) words: Vec<String>,
    /// All of them.
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) filters: Filters,
}

/// What sandboxes have to be like: all labels that are given, and one of the values for each other key.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Filters {
    /// Only those like this: `id=PREFIX`, `name=NAME`, `label=KEY[=VALUE]`, `status=WORD`; may be given again.
    #[arg(long = "filter", value_name = "KEY=VALUE", value_parser = filter)]
    pub(crate) filters: Vec<Filter>,
}

/// One property of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    /// How its id begins.
    Id(String),
    /// Its name.
    Name(String),
    /// A label, whatever its value if none is given.
    Label(String, Option<String>),
    /// The word for its state.
    Status(String),
}

/// Which sandboxes `--all` and `--filter` are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    /// Those that may have something alive in them.
    Living,
    /// Those that have ended too; a name then means all that have ended and bear it.
    Every,
}

/// What the words of a command line mean.
#[derive(Debug)]
pub(crate) struct Selection {
    /// The sandboxes, each once, in the order in which they were named.
    pub(crate) found: Vec<Known>,
    /// Why a word means none; the others are acted on all the same.
    pub(crate) missed: Vec<Failure>,
}

impl Ids {
    /// Whether more may be hit than was named one by one.
    pub(crate) fn is_broad(&self) -> bool {
        self.all || !self.filters.filters.is_empty()
    }

    /// Finds what is meant.
    ///
    /// # Errors
    /// When nothing is named (the code of a wrong command line), or the records cannot be listed. What a single word
    /// does not mean is told in [`Selection::missed`].
    pub(crate) fn select(&self, finder: &Finder, among: Among) -> Result<Selection, Failure> {
        let mut selection = Selection { found: Vec::new(), missed: Vec::new() };
        if self.is_broad() {
            if !self.words.is_empty() {
                let sentence = "ids cannot be used together with `--all` or `--filter`";
                return Err(Failure::new(exit_codes::USAGE, sentence));
            }
            let found = list(finder, among)?;
            let wanted =
                found.into_iter().filter(|(known, seen)| known.claimed && self.filters.match_all(seen));
            selection.found = wanted.map(|(known, _)| known).collect();
            return Ok(selection);
        }
        let words = read_words(&self.words)?;
        if words.is_empty() && !self.words.iter().any(|word| word == "-") {
            return Err(
                Failure::new(exit_codes::USAGE, "missing `ID`").hint("`penfold ps` lists the sandboxes")
            );
        }
        for word in words {
            match resolve(finder, &word) {
                Ok(known) => {
                    let others =
                        if among == Among::Every { older(finder, &word, &known)? } else { Vec::new() };
                    for known in std::iter::once(known).chain(others) {
                        if !selection.found.iter().any(|other| other.id == known.id) {
                            selection.found.push(known);
                        }
                    }
                }
                Err(failure) => selection.missed.push(failure),
            }
        }
        Ok(selection)
    }
}

impl Filters {
    /// Whether a status is asked for that only a sandbox can have in which nothing is alive.
    pub(crate) fn wants_ended(&self) -> bool {
        let is_over = |filter: &Filter| matches!(filter, Filter::Status(text) if text == STOPPED || word(text).is_some_and(|word| !word.is_living()));
        self.filters.iter().any(is_over)
    }

    /// Whether a sandbox is like this: for each key that is given, one of its values.
    pub(crate) fn match_all(&self, view: &View) -> bool {
        self.filters.iter().all(|wanted| {
            let same_key = |other: &&Filter| std::mem::discriminant(*other) == std::mem::discriminant(wanted);
            // Labels are not alternatives: a sandbox has many of them.
            match wanted {
                Filter::Label(..) => wanted.matches(view),
                _ => self.filters.iter().filter(same_key).any(|filter| filter.matches(view)),
            }
        })
    }
}

impl Filter {
    fn matches(&self, view: &View) -> bool {
        match self {
            Filter::Id(prefix) => !prefix.is_empty() && view.id.starts_with(prefix.as_str()),
            Filter::Name(name) => view.name.as_ref() == Some(name),
            Filter::Label(key, value) => {
                view.labels.get(key).is_some_and(|is| value.as_ref().is_none_or(|value| is == value))
            }
            // Who was stopped is found by that word, too.
            Filter::Status(word) => view.word.as_str() == word || (word == STOPPED && is_stopped(view)),
        }
    }
}

/// Reads `key=value`.
fn filter(given: &str) -> Result<Filter, Invalid> {
    const ACCEPTED: &str = "`id=PREFIX`, `name=NAME`, `label=KEY` or `label=KEY=VALUE`, `status=WORD`";
    let invalid = |problem| Invalid::new(given, problem, ACCEPTED);
    let (key, value) = given.split_once('=').ok_or_else(|| invalid("is not a filter"))?;
    if value.is_empty() {
        return Err(invalid("has no value"));
    }
    Ok(match key {
        "id" => Filter::Id(as_shown(value)),
        "name" => Filter::Name(value.to_owned()),
        "label" => match value.split_once('=') {
            Some((key, value)) => Filter::Label(key.to_owned(), Some(value.to_owned())),
            None => Filter::Label(value.to_owned(), None),
        },
        "status" if value == STOPPED || word(value).is_some() => Filter::Status(value.to_owned()),
        "status" => {
            return Err(Invalid::new(
                given,
                "names no status",
                "created, running, stopping, unkillable, exited, failed, stopped, killed, orphaned, lost",
            ));
        }
        _ => return Err(invalid("has an unknown key")),
    })
}

/// The part of a full uuid that is shown as the id; anything else as it is.
pub(crate) fn as_shown(id: &str) -> String {
    Id::from_whole(id).map_or_else(|| id.to_owned(), |id| id.short())
}

fn word(text: &str) -> Option<Word> {
    serde_json::from_value(serde_json::Value::String(text.to_owned())).ok()
}

/// What is listed, each with what is to be seen of it.
///
/// # Errors
/// When the records cannot be read.
pub(crate) fn list(finder: &Finder, among: Among) -> Result<Vec<(Known, View)>, Failure> {
    if let Some(error) = finder.blocked() {
        return Err(blocked(error));
    }
    view::select(finder, among == Among::Every)
        .map_err(|error| Failure::new(exit_codes::FAILURE, "cannot list the sandboxes").because(error))
}

/// The other sandboxes that have ended and bear the same name, if the word is the name of this one.
fn older(finder: &Finder, word: &str, newest: &Known) -> Result<Vec<Known>, Failure> {
    if newest.name.as_deref() != Some(word) {
        return Ok(Vec::new());
    }
    finder.ended_with_name(word).map_err(|error| {
        Failure::new(exit_codes::FAILURE, format!("cannot list the sandboxes called `{word}`")).because(error)
    })
}

/// The sandbox that one word means.
///
/// # Errors
/// With the codes for none and for more than one.
pub(crate) fn resolve(finder: &Finder, word: &str) -> Result<Known, Failure> {
    finder.resolve(word).map_err(|error| match error {
        ResolveError::NotFound { .. } => Failure::new(exit_codes::NO_SUCH_ID, error.to_string())
            .hint("`penfold ps -a` lists the sandboxes"),
        ResolveError::Ambiguous { .. } => Failure::new(exit_codes::AMBIGUOUS, error.to_string())
            .hint("give more characters, or the whole id"),
        ResolveError::Unreadable { .. } => Failure::new(exit_codes::FAILURE, error.to_string()),
    })
}

/// Sandboxes that were named, with what is to be seen of them.
#[derive(Debug)]
pub(crate) struct Chosen {
    /// In the order in which they were named.
    pub(crate) found: Vec<(Known, View)>,
    /// The exit code: that of the first word that meant none.
    pub(crate) exit: u8,
}

/// Looks at the sandboxes that some words mean, and says at once which word means none.
///
/// # Errors
/// When standard input cannot be read.
pub(crate) fn choose(global: &super::Global, finder: &Finder, ids: &[String]) -> Result<Chosen, Failure> {
    let mut chosen = Chosen { found: Vec::new(), exit: exit_codes::SUCCESS };
    let coloured = global.color.wanted(&std::io::stderr());
    for word in read_words(ids)? {
        let seen = resolve(finder, &word).and_then(|known| match view::view(finder, &known) {
            Some(seen) => Ok((known, seen)),
            None => Err(not_found(&ResolveError::NotFound { word })),
        });
        match seen {
            Ok((known, _)) if chosen.found.iter().any(|(other, _)| other.id == known.id) => {}
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

fn not_found(error: &ResolveError) -> Failure {
    Failure::new(exit_codes::NO_SUCH_ID, error.to_string()).hint("`penfold ps -a` lists the sandboxes")
}

/// Why no records can be read.
pub(crate) fn blocked(error: &StateError) -> Failure {
    let exit = match error {
        StateError::Stranger { .. } => exit_codes::NOT_PERMITTED,
        StateError::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            exit_codes::NOT_PERMITTED
        }
        StateError::Io { .. } => exit_codes::FAILURE,
    };
    let failure = Failure::new(exit, error.to_string());
    match std::error::Error::source(error) {
        Some(source) => failure.because(source.to_string()),
        None => failure,
    }
}

/// The finder of the state root that the command line means.
pub(crate) fn finder(global: &super::Global) -> Finder {
    Finder::new(Path::new(&crate::surroundings::root(global)))
}

/// The words, those from standard input in the place of `-`.
fn read_words(ids: &[String]) -> Result<Vec<String>, Failure> {
    let mut words = Vec::new();
    for id in ids {
        if id != "-" {
            words.push(id.clone());
            continue;
        }
        for line in std::io::stdin().lock().lines() {
            let line = line.map_err(|error| {
                Failure::new(exit_codes::FAILURE, "cannot read standard input").because(error)
            })?;
            words.extend(line.split_whitespace().map(str::to_owned));
        }
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_read_and_what_is_none_is_refused() {
        assert_eq!(filter("label=a=b=c").unwrap(), Filter::Label("a".to_owned(), Some("b=c".to_owned())));
        assert_eq!(filter("label=a").unwrap(), Filter::Label("a".to_owned(), None));
        let id = Id::new().unwrap();
        let whole = serde_json::to_value(id).unwrap();
        assert_eq!(filter(&format!("id={}", whole.as_str().unwrap())).unwrap(), Filter::Id(id.short()));
        assert_eq!(filter("status=lost").unwrap(), Filter::Status("lost".to_owned()));
        for text in ["", "id", "id=", "name=", "status=dead", "status=", "what=x", "=x"] {
            assert!(filter(text).is_err(), "{text}");
        }
    }
}
