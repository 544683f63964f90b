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
    ("reload", "a sandbox has no configuration to reload; `penfold help all` lists the commands"),
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
    ("images", "there are no images; `penfold run --profile jail --rootfs DIR` has a directory as root"),
    ("cp", "a sandbox has the files of the host, where `cp` copies"),
    ("history", "`penfold report` lists the sandboxes that have ended"),
    ("jobs", "`penfold ps` lists sandboxes"),
    ("enter", "`penfold exec -it ID sh` opens a shell in a sandbox"),
    ("shell", "`penfold exec -it ID sh` opens a shell in a sandbox"),
    ("upgrade", "put the new penfold in the place of the old file; sandboxes go on"),
    ("update", "put the new penfold in the place of the old file; sandboxes go on"),
];

/// Converts the matches of a verb into its flags.
///
/// # Errors
/// No command line causes an error: the matches come from the same definition.
pub(crate) fn read<A: FromArgMatches>(verb: &Verb, mut matches: ArgMatches) -> Result<A, Failure> {
    A::from_arg_matches_mut(&mut matches).map_err(|error| failure(&error, Some(verb)))
}

/// Makes a failure of an error of clap about the words of a verb.
pub(crate) fn failure(error: &clap::Error, verb: Option<&Verb>) -> Failure {
    failure_among(error, verb, std::iter::empty())
}

/// Makes a failure of an error of clap. `names` are those that a verb can have.
pub(crate) fn failure_among<'n>(
    error: &clap::Error,
    verb: Option<&Verb>,
    names: impl Iterator<Item = &'n str>,
) -> Failure {
    let kind = verb.map_or(FailureKind::Usage, |verb| verb.usage_failure);
    let help = match verb {
        Some(verb) => format!("`penfold {} --help` lists the options", verb.name),
        None => "`penfold help all` lists the commands".to_owned(),
    };
    let failure = Failure::new(kind, sentence(error));
    let failure = match error.source() {
        Some(source) if error.kind() == ErrorKind::ValueValidation => failure.because(source.to_string()),
        _ => failure,
    };
    let habit = verb.and_then(|verb| habit(verb.name, error));
    failure.hint(habit.or_else(|| suggestion(error, names)).unwrap_or(help))
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

/// What a habit from another tool means here.
fn habit(verb: &str, error: &clap::Error) -> Option<String> {
    let given = option(error, ContextKind::InvalidArg);
    let number = given.trim_start_matches('-');
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    if error.kind() == ErrorKind::ValueValidation {
        let is_always =
            verb == "run" && given == "--restart" && text(error, ContextKind::InvalidValue) == "always";
        return is_always.then(|| {
            "a command that exits with 0 is not started again; `--restart on-failure` does the rest"
                .to_owned()
        });
    }
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    match (verb, given.as_str()) {
        ("reap", _) if is_number => Some(format!("`penfold reap --pid {number}` ends the tree of a process")),
        ("kill", _) if is_number && given.starts_with('-') => Some(format!(
            "`penfold kill -s {number} ID` sends a signal; without -s all of the sandbox is killed"
        )),
        ("logs", _) if is_number && given.starts_with('-') => {
            Some(format!("`penfold logs -n {number} ID` shows the last lines"))
        }
        ("logs", "--stdout") => {
            Some("`penfold logs ID 2>/dev/null`: each stream comes where the command wrote it".to_owned())
        }
        ("run", "-p" | "--publish" | "--expose") => {
            Some("a sandbox has the ports of the host: what listens there is reached at once".to_owned())
        }
        ("run", "--volume") => {
            Some("a sandbox has the files of the host; `--mount` adds one for its time".to_owned())
        }
        _ => None,
    }
}

fn suggestion<'n>(error: &clap::Error, names: impl Iterator<Item = &'n str>) -> Option<String> {
    if error.kind() == ErrorKind::InvalidSubcommand {
        let given = text(error, ContextKind::InvalidSubcommand);
        if let Some((_, hint)) = FOREIGN.iter().find(|(word, _)| *word == given) {
            return Some((*hint).to_owned());
        }
        let word = nearest(&given, names)?;
        return Some(format!("did you mean `{word}`?"));
    }
    let kinds = [ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    let word = kinds.into_iter().find_map(|kind| match error.get(kind)? {
        // clap sorts suggestions by similarity, the best last.
        ContextValue::Strings(words) => words.last().cloned(),
        ContextValue::String(word) => Some(word.clone()),
        _ => None,
    })?;
    Some(format!("did you mean `{word}`?"))
}

/// Returns the name that differs least from a word: by one typing error (an extra, missing or wrong letter, or two swapped ones), or by two
/// of a word with at least five letters. A verb that ends something differs by one.
fn nearest<'n>(given: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let most = |name: &str| if given.len() < 5 || ENDING.contains(&name) { 1 } else { 2 };
    let near = names.filter_map(|name| {
        let distance = strsim::osa_distance(given, name);
        (distance <= most(name)).then_some((distance, name))
    });
    near.min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
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
    fn the_nearest_name_is_one_or_two_errors_away() {
        let names =
            ["run", "ps", "pause", "prune", "restart", "report", "reap", "kill", "stop", "rm", "events"];
        for (given, name) in [
            ("rnu", "run"),
            ("kil", "kill"),
            ("klil", "kill"),
            ("stopp", "stop"),
            ("r", "rm"),
            ("raep", "reap"),
            ("restrat", "restart"),
            ("puase", "pause"),
            ("evnets", "events"),
            ("repoort", "report"),
        ] {
            assert_eq!(nearest(given, names.into_iter()), Some(name), "{given}");
        }
        for given in ["zzz", "qq", "kiosk", "sopt1", "frobnicate"] {
            assert_eq!(nearest(given, names.into_iter()), None, "{given}");
        }
    }
}
