//! `penfold events`.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use clap::{ArgAction, Args};
use penfold_state::events::{About, Entry, Event, EventKind, From, KINDS, Reader, Waited};
use serde::Serialize;

use crate::args::verb::{Global, Verb};
use crate::args::{ids, usage};
use crate::failure::{Failure, FailureKind};
use crate::output::{self, WriteError};
use crate::text::lines::{self, count};
use crate::text::template;
use crate::text::time::{Since, rfc3339, since};
use crate::value::Invalid;
use crate::{exit_codes, surroundings};

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
    usage_failure: FailureKind::Usage,
    define: EventsArgs::augment_args,
    call: |global, matches| events(global, &usage::read(&VERB, matches)?),
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
        "id" => Filter::Id(ids::as_shown(value)),
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

/// So much is collected before it is written.
const ENOUGH: usize = 64 << 10;

/// An event as `--json` prints it.
#[derive(Serialize)]
struct Shown<'a> {
    schema: u32,
    time: &'a str,
    #[serde(flatten)]
    about: &'a About,
    #[serde(flatten)]
    what: &'a EventKind,
}

/// Shows what happened, and what happens if that is wanted.
pub(crate) fn events(global: &Global, args: &EventsArgs) -> Result<u8, Failure> {
    let root = surroundings::root(global);
    let from = if args.no_follow || args.since.is_some() { From::Start } else { From::End };
    let since = args.since.map_or(0, Since::nanoseconds);
    let mut reader = Reader::open(Path::new(&root), from)?;
    let stdout = io::stdout();
    loop {
        show(global, args, since, &mut reader)?;
        if args.no_follow || reader.wait(Some(stdout.as_fd()))? == Waited::HungUp {
            return Ok(exit_codes::SUCCESS);
        }
    }
}

/// Shows what can be read now.
fn show(global: &Global, args: &EventsArgs, since: u64, reader: &mut Reader) -> Result<(), Failure> {
    let mut text = Vec::new();
    let mut skipped = 0;
    while let Some(entry) = reader.next_entry()? {
        match entry {
            Entry::Event(event) if event.time_ns >= since && is_wanted(&event, args) => {
                add(&event, args.json, &mut text)?;
            }
            Entry::Event(_) => {}
            Entry::Skipped => skipped += 1,
        }
        if text.len() >= ENOUGH {
            output::data(&text)?;
            text.clear();
        }
    }
    if !text.is_empty() {
        output::data(&text)?;
    }
    if skipped > 0 && !global.quiet {
        let lines = count(skipped, "line of the events was", "lines of the events were");
        let mut talk = String::new();
        lines::say(&mut talk, &format!("{lines} skipped: damaged, or of a newer penfold"));
        output::talk(&talk);
    }
    Ok(())
}

fn is_wanted(event: &Event, args: &EventsArgs) -> bool {
    let filters = &args.filters;
    let asked = args.steps || filters.iter().any(|filter| matches!(filter, Filter::Kind(_)));
    if matches!(event.what, EventKind::TeardownStep { .. }) && !asked {
        return false;
    }
    let About { id, name, labels } = &event.about;
    let matches = |filter: &Filter| match filter {
        Filter::Id(prefix) => id.starts_with(prefix),
        Filter::Name(wanted) => name.as_ref() == Some(wanted),
        Filter::Kind(kind) => event.what.kind() == kind,
        Filter::Label(key, value) => {
            labels.get(key).is_some_and(|is| value.as_ref().is_none_or(|value| is == value))
        }
    };
    let is_label = |filter: &&Filter| matches!(filter, Filter::Label(..));
    filters.iter().filter(is_label).all(matches)
        && filters.iter().filter(|filter| !is_label(filter)).all(|filter| {
            let same = |other: &&Filter| std::mem::discriminant(*other) == std::mem::discriminant(filter);
            filters.iter().filter(same).any(matches)
        })
}

fn add(event: &Event, json: bool, text: &mut Vec<u8>) -> Result<(), WriteError> {
    let time = rfc3339(event.time_ns);
    if json {
        let shown = Shown { schema: event.schema, time: &time, about: &event.about, what: &event.what };
        serde_json::to_writer(&mut *text, &shown).map_err(WriteError::Json)?;
    } else {
        let About { id, name, .. } = &event.about;
        let name = name.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
        let mut line = String::new();
        // Members may have written here.
        lines::push(&mut line, &format!("{time} {} {id}{name} {}", event.what.kind(), details(&event.what)));
        text.extend_from_slice(line.trim_end().as_bytes());
    }
    text.push(b'\n');
    Ok(())
}

/// An event in words.
fn details(what: &EventKind) -> String {
    match what {
        EventKind::Start { command, .. } => command.join(" "),
        EventKind::Exec { number, command } => format!("{number}: {}", command.join(" ")),
        EventKind::Exit { exit, cause, status } => {
            let exit = exit.map_or_else(|| "?".to_owned(), template::exit);
            format!("{status} ({exit}), cause {}", template::cause(*cause))
        }
        EventKind::Stop { cause, grace_ms: Some(ms) } => {
            format!("cause {}, grace {ms} ms", template::cause(*cause))
        }
        EventKind::Stop { cause, grace_ms: None } => {
            format!("cause {}, killed at once", template::cause(*cause))
        }
        EventKind::TeardownStep { step, took_us, error, .. } => {
            let error = error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
            format!("{step} ({took_us} us){error}")
        }
        EventKind::Leak { what, outcome, reason } => {
            let reason = reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
            format!("{outcome}: {what}{reason}")
        }
        EventKind::Lost { exit, verified, survivors } => {
            let exit = exit.map_or_else(|| "exit not known".to_owned(), template::exit);
            if *verified {
                format!("{exit}, verified gone")
            } else {
                format!("{exit}, not gone: {}", count(*survivors, "survivor", "survivors"))
            }
        }
        EventKind::Adopted { pid, command } => format!("pid {pid}: {}", command.join(" ")),
    }
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
