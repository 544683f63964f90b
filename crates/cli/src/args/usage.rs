//! What is wrong with a command line, in one sentence.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, FromArgMatches};

use super::verb::Verb;
use crate::failure::{Failure, FailureKind};

/// The verbs that end or remove something. A word that is more than a slip of the finger away never leads to one.
pub(crate) const ENDING: &[&str] = &["kill", "stop", "rm", "reap", "gc", "prune"];

/// Words of docker, podman and systemd, and what does that here.
pub(crate) const FOREIGN: &[(&str, &str)] = &[
    ("start", "`penfold run -d CMD` starts a sandbox; one that has ended is not started again"),
    ("restart", "`penfold run -d CMD` starts a sandbox; one that has ended is not started again"),
    ("create", "`penfold run -d CMD` makes and starts a sandbox"),
    ("up", "`penfold run -d CMD` starts a sandbox"),
    ("down", "`penfold stop ID` ends a sandbox"),
    ("pause", "a sandbox cannot be paused; `penfold --help` lists the commands"),
    ("unpause", "a sandbox cannot be paused; `penfold --help` lists the commands"),
    ("freeze", "a sandbox cannot be paused; `penfold --help` lists the commands"),
    ("thaw", "a sandbox cannot be paused; `penfold --help` lists the commands"),
    ("reload", "a sandbox reads nothing again; `penfold --help` lists the commands"),
    ("remove", "`penfold rm ID` forgets a sandbox that has ended"),
    ("delete", "`penfold rm ID` forgets a sandbox that has ended"),
    ("clean", "`penfold gc -n` shows what outlived its sandbox"),
    ("list", "`penfold ps` lists sandboxes"),
    ("list-units", "`penfold ps` lists sandboxes"),
    ("show", "`penfold inspect ID` shows all that is known of a sandbox"),
    ("top", "`penfold tree ID` shows the processes of a sandbox"),
    ("stats", "`penfold status ID` tells how a sandbox is"),
    ("rename", "a sandbox gets its name at the start: `penfold run --name NAME CMD`"),
    ("is-active", "`penfold ps -q --filter name=NAME` prints nothing if it does not run"),
    ("journal", "`penfold logs ID` shows the output of a sandbox"),
    ("info", "`penfold doctor` tells what this host can do"),
];

/// The flags of a verb out of its matches.
///
/// # Errors
/// None that a user can cause: the matches were made from the same definition.
pub(crate) fn read<A: FromArgMatches>(verb: &Verb, mut matches: ArgMatches) -> Result<A, Failure> {
    A::from_arg_matches_mut(&mut matches).map_err(|error| failure(&error, Some(verb)))
}

/// The sentence for what is wrong.
pub(crate) fn failure(error: &clap::Error, verb: Option<&Verb>) -> Failure {
    let kind = verb.map_or(FailureKind::Usage, |verb| verb.usage_failure);
    let help = match verb {
        Some(verb) => format!("`penfold {} --help` shows what it takes", verb.name),
        None => "`penfold --help` lists the commands".to_owned(),
    };
    let failure = Failure::new(kind, sentence(error));
    let failure = match error.source() {
        Some(source) if error.kind() == ErrorKind::ValueValidation => failure.because(source.to_string()),
        _ => failure,
    };
    failure.hint(suggestion(error).unwrap_or(help))
}

fn sentence(error: &clap::Error) -> String {
    let argument = || option(error, ContextKind::InvalidArg);
    let value = || text(error, ContextKind::InvalidValue);
    match error.kind() {
        ErrorKind::UnknownArgument => format!("unknown option or argument `{}`", argument()),
        ErrorKind::InvalidSubcommand => {
            format!("unknown command `{}`", text(error, ContextKind::InvalidSubcommand))
        }
        ErrorKind::InvalidValue if value().is_empty() => format!("`{}` needs a value", argument()),
        ErrorKind::InvalidValue => {
            let accepted = text(error, ContextKind::ValidValue);
            format!("invalid value for `{}`: `{}` is not known; accepted: {accepted}", argument(), value())
        }
        ErrorKind::ValueValidation => format!("invalid value for `{}`", argument()),
        ErrorKind::MissingRequiredArgument => {
            format!("missing {}", missing(error))
        }
        ErrorKind::ArgumentConflict => {
            format!(
                "`{}` cannot be used together with `{}`",
                argument(),
                option(error, ContextKind::PriorArg)
            )
        }
        ErrorKind::TooManyValues => format!("`{}` takes no value, but `{}` was given", argument(), value()),
        ErrorKind::InvalidUtf8 => "an argument that has to be text is not UTF-8".to_owned(),
        kind => kind.as_str().unwrap_or("cannot understand the command line").to_lowercase(),
    }
}

fn suggestion(error: &clap::Error) -> Option<String> {
    if error.kind() == ErrorKind::InvalidSubcommand {
        let given = text(error, ContextKind::InvalidSubcommand);
        if let Some((_, hint)) = FOREIGN.iter().find(|(word, _)| *word == given) {
            return Some((*hint).to_owned());
        }
        if let Some(ContextValue::Strings(words)) = error.get(ContextKind::SuggestedSubcommand) {
            let word =
                words.iter().rfind(|word| !ENDING.contains(&word.as_str()) || is_slip(&given, word))?;
            return Some(format!("did you mean `{word}`?"));
        }
    }
    let kinds = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    let word = kinds.into_iter().find_map(|kind| match error.get(kind)? {
        // From the least to the most alike.
        ContextValue::Strings(words) => words.last().cloned(),
        ContextValue::String(word) => Some(word.clone()),
        _ => None,
    })?;
    Some(format!("did you mean `{word}`?"))
}

/// Whether a word becomes another by one slip: a letter too many, one too few, a wrong one, or two that changed places.
fn is_slip(given: &str, word: &str) -> bool {
    let (given, word): (Vec<char>, Vec<char>) = (given.chars().collect(), word.chars().collect());
    let same = given.iter().zip(&word).take_while(|(one, other)| one == other).count();
    let (given, word) = (given.get(same..).unwrap_or_default(), word.get(same..).unwrap_or_default());
    match (given, word) {
        ([_, given @ ..], _) if given == word => true,
        (_, [_, word @ ..]) if given == word => true,
        ([_, given @ ..], [_, word @ ..]) if given == word => true,
        ([a, b, given @ ..], [c, d, word @ ..]) => a == d && b == c && given == word,
        _ => false,
    }
}

/// What is missing, each out of clap's notation: `<CMD>...` or `<--pid <PID>|--pgid <PGID>>`.
fn missing(error: &clap::Error) -> String {
    let notations: &[String] = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(notations)) => notations,
        Some(ContextValue::String(notation)) => std::slice::from_ref(notation),
        _ => &[],
    };
    let named = notations.iter().map(|notation| {
        // A group is in brackets as a whole, a value may be followed by dots.
        let group = notation.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
        let choices: Vec<String> =
            group.unwrap_or(notation).split('|').map(|choice| format!("`{}`", plain(choice))).collect();
        match choices.as_slice() {
            [one] => one.clone(),
            several => format!("one of {}", several.join(", ")),
        }
    });
    named.collect::<Vec<_>>().join(" and ")
}

/// An option as it is typed, or the name of an argument; clap writes `--grace <DURATION>`, `<SHELL>`, `<CMD>...`.
fn plain(notation: &str) -> &str {
    match notation.split_once([' ', '[']) {
        Some((name, _)) if name.starts_with('-') => name,
        _ => notation.trim_end_matches('.').trim_start_matches('<').trim_end_matches('>'),
    }
}

fn option(error: &clap::Error, kind: ContextKind) -> String {
    let text = text(error, kind);
    // What a stranger typed is not notation.
    if error.kind() == ErrorKind::UnknownArgument { text } else { plain(&text).to_owned() }
}

fn text(error: &clap::Error, kind: ContextKind) -> String {
    match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        Some(ContextValue::StyledStr(text)) => text.to_string(),
        Some(ContextValue::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_one_letter() {
        for (given, word) in
            [("kil", "kill"), ("klil", "kill"), ("sop", "stop"), ("stopp", "stop"), ("r", "rm")]
        {
            assert!(is_slip(given, word), "{given} {word}");
        }
        for (given, word) in
            [("pause", "prune"), ("restart", "reap"), ("start", "stop"), ("top", "stops"), ("", "rm")]
        {
            assert!(!is_slip(given, word), "{given} {word}");
        }
    }
}
