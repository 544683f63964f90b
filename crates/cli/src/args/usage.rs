//! Turns the errors of clap into sentences with a hint.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, FromArgMatches};

use super::verb::Verb;
use crate::failure::{Failure, FailureKind};

/// The verbs that end or remove something. penfold suggests them only for a word with a single typing error.
pub(crate) const ENDING: &[&str] = &["kill", "stop", "rm", "reap", "gc", "prune"];

/// Commands of docker, podman and systemd, and the penfold command to use instead.
pub(crate) const FOREIGN: &[(&str, &str)] = &[
    ("start", "`penfold run -d CMD` starts a new sandbox; `penfold restart ID` starts an ended one again"),
    ("create", "`penfold run -d CMD` creates and starts a sandbox"),
    ("up", "`penfold run -d CMD` starts a sandbox"),
    ("down", "`penfold stop ID` ends a sandbox"),
    ("freeze", "`penfold pause ID` freezes a sandbox"),
    ("thaw", "`penfold unpause ID` lets a paused sandbox go on"),
    ("reload", "a sandbox has no configuration to reload; `penfold --help` lists the commands"),
    ("remove", "`penfold rm ID` removes the record of an ended sandbox"),
    ("delete", "`penfold rm ID` removes the record of an ended sandbox"),
    ("clean", "`penfold gc -n` lists the leaks of sandboxes"),
    ("list", "`penfold ps` lists sandboxes"),
    ("list-units", "`penfold ps` lists sandboxes"),
    ("show", "`penfold inspect ID` shows the complete record of a sandbox"),
    ("rename", "a sandbox gets its name at the start: `penfold run --name NAME CMD`"),
    ("is-active", "`penfold ps -q --filter name=NAME` prints the id if the sandbox is running"),
    ("journal", "`penfold logs ID` shows the output of a sandbox"),
    ("info", "`penfold doctor` shows the features of this host"),
];

/// Converts the matches of a verb into its flags.
///
/// # Errors
/// No command line causes an error: the matches come from the same definition.
pub(crate) fn read<A: FromArgMatches>(verb: &Verb, mut matches: ArgMatches) -> Result<A, Failure> {
    A::from_arg_matches_mut(&mut matches).map_err(|error| failure(&error, Some(verb)))
}

/// Makes a failure of an error of clap.
pub(crate) fn failure(error: &clap::Error, verb: Option<&Verb>) -> Failure {
    let kind = verb.map_or(FailureKind::Usage, |verb| verb.usage_failure);
    let help = match verb {
        Some(verb) => format!("`penfold {} --help` lists the options", verb.name),
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
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            "an action is missing".to_owned()
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
        ErrorKind::InvalidUtf8 => "an argument is not UTF-8".to_owned(),
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
        // clap sorts suggestions by similarity, the best last.
        ContextValue::Strings(words) => words.last().cloned(),
        ContextValue::String(word) => Some(word.clone()),
        _ => None,
    })?;
    Some(format!("did you mean `{word}`?"))
}

/// Whether two words differ by one typing error: an extra, missing or wrong letter, or two swapped letters.
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

/// Names the missing arguments. clap writes them as `<CMD>...` or `<--pid <PID>|--pgid <PGID>>`.
fn missing(error: &clap::Error) -> String {
    let notations: &[String] = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(notations)) => notations,
        Some(ContextValue::String(notation)) => std::slice::from_ref(notation),
        _ => &[],
    };
    let named = notations.iter().map(|notation| {
        // A group has brackets around it; dots may follow a single value.
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

/// Strips clap's notation, `--grace <DURATION>`, `<SHELL>`, `<CMD>...`, to the option or the argument's name.
fn plain(notation: &str) -> &str {
    match notation.split_once([' ', '[']) {
        Some((name, _)) if name.starts_with('-') => name,
        _ => notation.trim_end_matches('.').trim_start_matches('<').trim_end_matches('>'),
    }
}

fn option(error: &clap::Error, kind: ContextKind) -> String {
    let text = text(error, kind);
    // An unknown argument is the user's text, not clap's notation.
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
