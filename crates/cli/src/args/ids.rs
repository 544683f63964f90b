//! Which sandboxes are meant: ids, names, `-`, `--all` and `--filter`, the same for every verb that takes several.

use clap::Args;
use penfold_control::View;
use penfold_state::Id;
use penfold_state::state::Status;

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

impl Ids {
    /// Whether more may be hit than was named one by one.
    pub(crate) fn is_broad(&self) -> bool {
        self.all || !self.filters.filters.is_empty()
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
            Filter::Status(word) => view.status.as_str() == word || (word == STOPPED && is_stopped(view)),
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

fn word(text: &str) -> Option<Status> {
    serde_json::from_value(serde_json::Value::String(text.to_owned())).ok()
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
