//! `--spec FILE`: the flags of a run from a file. Flags of the command line take precedence.

use std::ffi::OsString;
use std::io::Read as _;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command};
use penfold_api::SandboxSpec;

use super::{VERB, definition};
use crate::args::usage;
use crate::args::verb::Global;
use crate::config;
use crate::failure::{Failure, FailureKind};

/// The largest file.
const LARGEST: u64 = 1 << 20;

/// Adds the flags of the configuration, and those of the file that `--spec` names, if any, to those of the command line.
pub(crate) fn expand(global: &Global, matches: ArgMatches) -> Result<ArgMatches, Failure> {
    Ok(expand_words(global, matches)?.0)
}

/// As [`expand`], also with the words that mean the same; `None` if these are those of the command line.
pub(super) fn expand_words(
    global: &Global,
    matches: ArgMatches,
) -> Result<(ArgMatches, Option<Vec<OsString>>), Failure> {
    let path = matches.get_one::<std::path::PathBuf>("spec");
    let configured = global.config.run_flags(matches.get_flag("detach"));
    if path.is_none() && configured.is_empty() {
        return Ok((matches, None));
    }
    let mut words = configured;
    let mut command: Vec<OsString> = Vec::new();
    if let Some(path) = path {
        let spec = read(path)?;
        words.extend(config::run_flags(&spec));
        command = spec.command.iter().map(OsString::from).collect();
    }
    words.extend(given(&matches));
    if let Some(given) = matches.get_many::<OsString>("command") {
        command = given.cloned().collect();
    }
    let file = path.map_or("the configuration".to_owned(), |path| format!("`{}`", path.display()));
    if command.is_empty() {
        let sentence = format!("{file} has no `command`, and none was given");
        return Err(Failure::new(FailureKind::NotStarted, sentence));
    }
    words.push("--".into());
    words.extend(command);
    let matches = definition::parse(&words).map_err(|error| {
        let failure = usage::failure(&error, Some(&VERB));
        failure.hint(format!("the flags are from {file} and from the command line"))
    })?;
    Ok((matches, Some(words)))
}

/// The flags of the command line, as words.
fn given(matches: &ArgMatches) -> Vec<OsString> {
    let mut words = Vec::new();
    for argument in definition::all(Command::new(VERB.name)).get_arguments() {
        let id = argument.get_id().as_str();
        let Some(flag) = argument.get_long().filter(|flag| *flag != "spec") else { continue };
        if !matches.try_contains_id(id).unwrap_or(false)
            || matches.value_source(id) != Some(ValueSource::CommandLine)
        {
            continue;
        }
        let values = matches
            .get_raw(id)
            .filter(|_| matches!(argument.get_action(), ArgAction::Set | ArgAction::Append));
        let mut values = values.into_iter().flatten().peekable();
        // A flag, or an option without its value.
        if values.peek().is_none() {
            words.push(format!("--{flag}").into());
        }
        for value in values {
            let mut word = OsString::from(format!("--{flag}="));
            word.push(value);
            words.push(word);
        }
    }
    words
}

fn read(path: &Path) -> Result<SandboxSpec, Failure> {
    let failed = |sentence: String| Failure::new(FailureKind::NotStarted, sentence);
    let cannot = || failed(format!("cannot read the description `{}`", path.display()));
    let mut text = String::new();
    let file: Box<dyn std::io::Read> = if path.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).map_err(|error| cannot().because(error))?)
    };
    file.take(LARGEST + 1).read_to_string(&mut text).map_err(|error| cannot().because(error))?;
    if text.len() > usize::try_from(LARGEST).unwrap_or(usize::MAX) {
        return Err(cannot().because("it is larger than 1 MiB"));
    }
    // A file of JSON begins with a brace, which no file of TOML does.
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(&text).map_err(|error| cannot().because(error.to_string()));
    }
    toml::from_str(&text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
        cannot().because(format!("line {line}: {}", error.message().replace('\n', " ")))
    })
}
