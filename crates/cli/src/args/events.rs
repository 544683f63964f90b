//! `penfold events`: its flags.

use clap::{ArgAction, Args};
use penfold_state::events::KINDS;

use super::Verb;
use crate::exit_codes;
use crate::text::time::{Since, since};
use crate::value::Invalid;

/// The verb `events`.
pub(crate) const VERB: Verb = Verb {
    name: "events",
    aliases: &[],
    about: "Show what happens to detached sandboxes",
    description: "Shows what happens to detached sandboxes from now on, until it is interrupted: start, exec, stop, \
        exit, lost, leak, adopted, and with --steps each teardown-step. With --since also what has happened; with --no-follow only that, and \
        all that is kept if no --since is given. At least the last 8 MiB of events are kept. They are news, not \
        evidence: what is there for certain is told by `penfold ps`.",
    examples: &[
        ("penfold events", "watch what happens from now on"),
        (
            "penfold events --no-follow --since 10m -f name=web",
            "what happened to one in the last ten minutes?",
        ),
        ("penfold events --json -f kind=exit -f kind=lost", "one JSON object for each end, for programs"),
    ],
    usage_exit: exit_codes::USAGE,
    define: EventsArgs::augment_args,
    call: |global, matches| crate::events::events(global, &super::read(&VERB, matches)?),
};

/// What `penfold events` was asked to do.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "flags")]
pub(crate) struct EventsArgs {
    /// Begin with what is not older: a duration, or a time as in `2026-11-21T10:35:00Z`.
    #[arg(long, value_name = "TIME", value_parser = since, allow_hyphen_values = true)]
    pub(crate) since: Option<Since>,
    /// Only events like this: `id=PREFIX`, `name=NAME`, `label=KEY[=VALUE]`, `kind=KIND`; may be given again.
    #[arg(short, long = "filter", value_name = "KEY=VALUE", value_parser = filter)]
    pub(crate) filters: Vec<Filter>,
    /// Also show each step of a teardown, as `kind=teardown-step` does.
    #[arg(long)]
    pub(crate) steps: bool,
    /// End after what has happened already.
    #[arg(long, overrides_with = "follow")]
    pub(crate) no_follow: bool,
    /// Go on with what happens, as is usual.
    #[arg(long, action = ArgAction::SetTrue, overrides_with = "no_follow")]
    pub(crate) follow: bool,
    /// Print one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What an event has to be like: all labels that are given, and one of the values for each other key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    /// How the id of its sandbox begins.
    Id(String),
    /// The name of its sandbox.
    Name(String),
    /// A label of its sandbox, whatever its value if none is given.
    Label(String, Option<String>),
    /// Its kind.
    Kind(String),
}

fn filter(given: &str) -> Result<Filter, Invalid> {
    let invalid = |problem| {
        let accepted = "`id=PREFIX`, `name=NAME`, `label=KEY[=VALUE]`, `kind=KIND`";
        Invalid::new(given, problem, accepted)
    };
    let (key, value) = given.split_once('=').ok_or_else(|| invalid("is no filter"))?;
    if value.is_empty() {
        return Err(invalid("names nothing"));
    }
    Ok(match key {
        "id" => Filter::Id(super::ids::as_shown(value)),
        "name" => Filter::Name(value.to_owned()),
        "label" => match value.split_once('=') {
            Some((key, value)) => Filter::Label(key.to_owned(), Some(value.to_owned())),
            None => Filter::Label(value.to_owned(), None),
        },
        // `event` is docker's word for it.
        "kind" | "event" if KINDS.contains(&value) => Filter::Kind(value.to_owned()),
        "kind" | "event" => {
            let kinds = "start, exec, exit, stop, teardown-step, leak, lost, adopted";
            return Err(Invalid::new(given, "names no kind", kinds));
        }
        _ => return Err(invalid("has an unknown key")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_read_and_what_is_none_is_refused() {
        assert_eq!(filter("label=a=b=c").unwrap(), Filter::Label("a".to_owned(), Some("b=c".to_owned())));
        assert_eq!(filter("label=a").unwrap(), Filter::Label("a".to_owned(), None));
        for kind in KINDS {
            assert_eq!(filter(&format!("event={kind}")).unwrap(), Filter::Kind((*kind).to_owned()));
            let refusal = filter("kind=dead").unwrap_err().to_string();
            assert!(refusal.contains(kind), "{refusal}");
        }
        for text in ["", "id", "id=", "name=", "kind=", "kind=dead", "what=x", "=x"] {
            assert!(filter(text).is_err(), "{text}");
        }
    }
}
