//! The arguments that select sandboxes: ids, names, `-`, `--all` and `--filter`.

use clap::Args;
use penfold_control::SandboxView;
use penfold_state::Id;
use penfold_state::state::Status;

use crate::text::template::{STOPPED, is_stopped};
use crate::value::Invalid;

/// The selection of sandboxes; a verb flattens this into its own flags.
#[derive(Args, Clone, Debug)]
pub(crate) struct Ids {
    /// Ids, unique prefixes of ids, or names; `-` reads them from standard input.
    #[arg(value_name = "ID")]
    pub(crate) words: Vec<String>,
    /// Select all sandboxes.
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) filters: Filters,
}

/// The filters. A sandbox must have all given labels, and for each other key one of the given values.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Filters {
    /// Select by a property: `id=PREFIX`, `name=NAME`, `label=KEY[=VALUE]`, `status=WORD`; may be repeated.
    #[arg(long = "filter", value_name = "KEY=VALUE", value_parser = filter)]
    pub(crate) filters: Vec<Filter>,
}

/// One property of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    /// A prefix of the id.
    Id(String),
    /// The name.
    Name(String),
    /// A label; without a value, any value matches.
    Label(String, Option<String>),
    /// The status.
    Status(String),
}

impl Ids {
    /// Whether the selection can contain sandboxes that were not named one by one.
    pub(crate) fn is_broad(&self) -> bool {
        self.all || !self.filters.filters.is_empty()
    }
}

impl Filters {
    /// Whether a filter asks for a status of sandboxes without live members.
    pub(crate) fn wants_ended(&self) -> bool {
        let is_over = |filter: &Filter| matches!(filter, Filter::Status(text) if text == STOPPED || word(text).is_some_and(|word| !word.is_living()));
        self.filters.iter().any(is_over)
    }

    /// Whether a sandbox passes the filters.
    pub(crate) fn match_all(&self, view: &SandboxView) -> bool {
        self.filters.iter().all(|wanted| {
            let same_key = |other: &&Filter| std::mem::discriminant(*other) == std::mem::discriminant(wanted);
            // A sandbox has several labels, so the labels of the filters are not alternatives.
            match wanted {
                Filter::Label(..) => wanted.matches(view),
                _ => self.filters.iter().filter(same_key).any(|filter| filter.matches(view)),
            }
        })
    }
}

impl std::fmt::Display for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Filter::Id(prefix) => write!(f, "id={prefix}"),
            Filter::Name(name) => write!(f, "name={name}"),
            Filter::Label(key, None) => write!(f, "label={key}"),
            Filter::Label(key, Some(value)) => write!(f, "label={key}={value}"),
            Filter::Status(word) => write!(f, "status={word}"),
        }
    }
}

impl Filter {
    fn matches(&self, view: &SandboxView) -> bool {
        match self {
            Filter::Id(prefix) => !prefix.is_empty() && view.id.starts_with(prefix.as_str()),
            Filter::Name(name) => view.name.as_ref() == Some(name),
            Filter::Label(key, value) => {
                view.labels.get(key).is_some_and(|is| value.as_ref().is_none_or(|value| is == value))
            }
            // A stopped sandbox matches `killed` and `stopped`: the stored status is `killed`.
            Filter::Status(word) => view.status.as_str() == word || (word == STOPPED && is_stopped(view)),
        }
    }
}

/// Reads `key=value`.
fn filter(given: &str) -> Result<Filter, Invalid> {
    const ACCEPTED: &str = "`id=PREFIX`, `name=NAME`, `label=KEY` or `label=KEY=VALUE`, `status=WORD`";
    let invalid = |problem| Invalid::new(given, problem, ACCEPTED);
    let (key, value) = given.split_once('=').ok_or_else(|| invalid("is not of the form `KEY=VALUE`"))?;
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
                "is not a status",
                "created, running, stopping, unkillable, exited, failed, stopped, killed, orphaned, lost",
            ));
        }
        _ => return Err(invalid("has an unknown key")),
    })
}

/// Shortens a full uuid to the id that penfold shows; returns any other text unchanged.
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
