//! Where the flags of a run meet those of the configuration and of `--spec FILE`.

use std::io::Read as _;
use std::path::Path;

use clap::ArgMatches;
use penfold_launch::caller::Caller;
use penfold_launch::spec::Values;
use penfold_request::SandboxSpec;

use super::request::Given;
use super::{RunArgs, VERB};
use crate::args::usage;
use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind};

/// The largest file.
const LARGEST: u64 = 1 << 20;

/// Reads the flags, and lays them over the file that `--spec` names, if any, and over the configuration.
///
/// # Errors
/// When a file cannot be read, or there is no command.
pub(crate) fn request(global: &Global, matches: ArgMatches) -> Result<(SandboxSpec, Caller), Failure> {
    let given = Given::of(&matches);
    let args: RunArgs = usage::read(&VERB, matches).map_err(Failure::not_started)?;
    let path = args.spec.clone();
    let (mut spec, caller) = args.into_request(given)?;
    if let Some(path) = &path {
        spec = spec.over(read(path)?);
    }
    let spec = global.config.over_defaults(spec, caller.detach);
    if path.is_none() && !global.config.has_defaults() {
        return Ok((spec, caller));
    }
    let file = path.map_or("the configuration".to_owned(), |path| format!("`{}`", path.display()));
    if spec.command.is_empty() {
        let sentence = format!("{file} has no `command`, and none was given");
        return Err(Failure::new(FailureKind::NotStarted, sentence));
    }
    // A wrong value may be one that nobody has typed now.
    Values::of(&spec)
        .map_err(|error| error.hint(format!("the flags are from {file} and from the command line")))?;
    Ok((spec, caller))
}

/// Reads a description.
///
/// # Errors
/// When the file cannot be read, or is none.
pub(crate) fn read(path: &Path) -> Result<SandboxSpec, Failure> {
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
        return serde_json::from_slice(text.as_bytes()).map_err(|error| cannot().because(error.to_string()));
    }
    toml::from_str(&text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
        cannot().because(format!("line {line}: {}", error.message().replace('\n', " ")))
    })
}
