//! `penfold events`.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use clap::{ArgAction, Args};
use penfold_process::quote_words;
use penfold_state::cause_word;
use penfold_state::events::{
    Event, EventEntry, EventKind, EventPosition, EventReader, EventSubject, EventWaitEnd, KINDS,
};
use penfold_state::time::format_rfc3339;

use crate::args::verb::{Global, Places, Verb};
use crate::args::{ids, usage};
use crate::failure::{Failure, FailureKind};
use crate::output::{self, WriteError};
use crate::text::lines::{self, count};
use crate::text::requester;
use crate::text::time::{Since, since};
use crate::value::Invalid;
use crate::{exit_codes, surroundings};

/// The verb `events`.
pub(crate) const VERB: Verb = Verb {
    name: "events",
    aliases: &[],
    about: "Show the events of detached sandboxes",
    description: "Shows the events of detached sandboxes from now on, until it is interrupted: start, exec, stop, exit, \
        lost, rmdir-busy, leak, no-restart, adopted, and with --steps each teardown-step. --since also shows past events. --no-follow shows only \
        past events: all kept events, unless --since limits them. penfold keeps at least the last 8 MiB of events. An \
        event is news, not evidence: `penfold ps` shows the verified status.",
    examples: &[
        ("penfold events", "watch new events"),
        (
            "penfold events --no-follow --since 10m -f name=web",
            "show the events of web in the last ten minutes",
        ),
        ("penfold events --json -f kind=exit -f kind=lost", "print a JSON object for each end of a sandbox"),
    ],
    usage_failure: FailureKind::Usage,
    define: EventsArgs::augment_args,
    places: Places::Hosts,
    call: |global, matches| events(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold events`.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "flags")]
pub(crate) struct EventsArgs {
    /// Also show past events: not older than a duration such as `10m`, or a time such as `2026-11-21T10:35:00Z`.
    #[arg(long, value_name = "TIME", value_parser = since, allow_hyphen_values = true)]
    pub(crate) since: Option<Since>,
    /// Select events: `id=PREFIX`, `name=NAME`, `label=KEY[=VALUE]`, `kind=KIND`; may be repeated.
    #[arg(short, long = "filter", value_name = "KEY=VALUE", value_parser = filter)]
    pub(crate) filters: Vec<Filter>,
    /// Also show each step of a teardown, as `kind=teardown-step` does.
    #[arg(long)]
    pub(crate) steps: bool,
    /// Show past events only, then exit.
    #[arg(long, overrides_with = "follow")]
    pub(crate) no_follow: bool,
    /// Show new events until interrupted; this is the default.
    #[arg(long, action = ArgAction::SetTrue, overrides_with = "no_follow")]
    pub(crate) follow: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A filter. An event must have all given labels, and for each other key one of the given values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    /// A prefix of the id of the sandbox.
    Id(String),
    /// The name of the sandbox.
    Name(String),
    /// A label of the sandbox; without a value, any value matches.
    Label(String, Option<String>),
    /// The kind of the event.
    Kind(String),
}

fn filter(given: &str) -> Result<Filter, Invalid> {
    let invalid = |problem| {
        let accepted = "`id=PREFIX`, `name=NAME`, `label=KEY[=VALUE]`, `kind=KIND`";
        Invalid::new(given, problem, accepted)
    };
    let (key, value) = given.split_once('=').ok_or_else(|| invalid("is not of the form `KEY=VALUE`"))?;
    if value.is_empty() {
        return Err(invalid("has no value"));
    }
    Ok(match key {
        "id" => Filter::Id(ids::as_shown(value)),
        "name" => Filter::Name(value.to_owned()),
        "label" => match value.split_once('=') {
            Some((key, value)) => Filter::Label(key.to_owned(), Some(value.to_owned())),
            None => Filter::Label(value.to_owned(), None),
        },
        // docker calls the kind `event`.
        "kind" | "event" if KINDS.contains(&value) => Filter::Kind(value.to_owned()),
        "kind" | "event" => {
            let kinds = "start, exec, exit, stop, teardown-step, rmdir-busy, leak, lost, no-restart, adopted";
            return Err(Invalid::new(given, "is not a kind of event", kinds));
        }
        _ => return Err(invalid("has an unknown key")),
    })
}

/// The output is written when this many bytes are collected.
const BUFFER: usize = 64 << 10;

/// Shows past events, then follows new ones unless `--no-follow` is given.
pub(crate) fn events(global: &Global, args: &EventsArgs) -> Result<u8, Failure> {
    let root = surroundings::root(global);
    let from = if args.no_follow || args.since.is_some() { EventPosition::Start } else { EventPosition::End };
    let since = args.since.map_or(0, Since::nanoseconds);
    let mut reader = EventReader::open(Path::new(&root), from)?;
    let stdout = io::stdout();
    loop {
        show(global, args, since, &mut reader)?;
        if args.no_follow || reader.wait(Some(stdout.as_fd()))? == EventWaitEnd::HungUp {
            return Ok(exit_codes::SUCCESS);
        }
    }
}

/// Shows the events that can be read now.
fn show(global: &Global, args: &EventsArgs, since: u64, reader: &mut EventReader) -> Result<(), Failure> {
    let mut text = Vec::new();
    let mut skipped = 0;
    while let Some(entry) = reader.next_entry()? {
        match entry {
            EventEntry::Event(event) if event.time_ns >= since && is_wanted(&event, args) => {
                add(&event, args.json, &mut text)?;
            }
            EventEntry::Event(_) => {}
            EventEntry::Skipped => skipped += 1,
        }
        if text.len() >= BUFFER {
            output::data(&text)?;
            text.clear();
        }
    }
    if !text.is_empty() {
        output::data(&text)?;
    }
    if skipped > 0 && !global.quiet {
        let lines = count(skipped, "event was", "events were");
        let mut talk = String::new();
        lines::say(&mut talk, &format!("{lines} skipped: damaged, or written by a newer penfold"));
        output::message(&talk);
    }
    Ok(())
}

fn is_wanted(event: &Event, args: &EventsArgs) -> bool {
    let filters = &args.filters;
    let asked = args.steps || filters.iter().any(|filter| matches!(filter, Filter::Kind(_)));
    if matches!(event.what, EventKind::TeardownStep { .. }) && !asked {
        return false;
    }
    let EventSubject { id, labels, .. } = &event.about;
    let name = event.about.held_name();
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
    if json {
        text.extend(event.to_json().map_err(WriteError::Json)?);
    } else {
        let time = format_rfc3339(event.time_ns);
        let id = &event.about.id;
        let name = event.about.held_name().map_or_else(String::new, |name| format!(" ({name})"));
        let mut line = String::new();
        // Members of the same user can write to the event file, so the text is escaped.
        lines::push(&mut line, &format!("{time} {} {id}{name} {}", event.what.kind(), details(&event.what)));
        text.extend_from_slice(line.trim_end().as_bytes());
    }
    text.push(b'\n');
    Ok(())
}

/// The details of an event as text.
fn details(what: &EventKind) -> String {
    match what {
        EventKind::Start { command, .. } => quote_words(command),
        EventKind::Exec { number, command } => format!("{number}: {}", quote_words(command)),
        EventKind::Exit { exit, cause, status } => {
            let exit = exit.map_or_else(|| "?".to_owned(), |exit| exit.to_string());
            format!("{status} ({exit}), cause {}", cause_word(*cause))
        }
        EventKind::Stop { cause, grace_ms: Some(ms), by } => {
            format!("cause {}{}, grace {ms} ms", cause_word(*cause), requester::words(by.as_deref()))
        }
        EventKind::Stop { cause, grace_ms: None, by } => {
            format!("cause {}{}, killed at once", cause_word(*cause), requester::words(by.as_deref()))
        }
        EventKind::TeardownStep { step, took_us, error, .. } => {
            let error = error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
            format!("{step} ({took_us} us){error}")
        }
        EventKind::RmdirBusy { path, pids, tries, took_us, .. } => {
            let pids = pids.iter().map(i32::to_string).collect::<Vec<_>>().join(" ");
            let inside = if pids.is_empty() { String::new() } else { format!(", inside: {pids}") };
            format!("{path}: refused {tries} times in {took_us} us{inside}")
        }
        EventKind::Leak { what, outcome, reason } => {
            let reason = reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
            format!("{outcome}: {what}{reason}")
        }
        EventKind::Lost { exit, verified, survivors, by } => {
            let exit = exit.map_or_else(|| "exit not known".to_owned(), |exit| exit.to_string());
            if *verified {
                format!("{exit}, verified gone{}", requester::words(by.as_deref()))
            } else {
                format!("{exit}, not gone: {}", count(*survivors, "survivor", "survivors"))
            }
        }
        EventKind::NoRestart { reason } => reason.clone(),
        EventKind::Adopted { pid, command } => format!("pid {pid}: {}", quote_words(command)),
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
