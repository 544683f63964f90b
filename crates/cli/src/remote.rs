//! Where a verb acts, by `--host` or `PENFOLD_HOST`.

mod hosts;

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::ArgMatches;
use penfold_api::TokenLine;
use penfold_client::{Client, ServerAddress};

use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind};
use crate::place::{InvalidPlace, RemotePlace};
use crate::ssh;
use crate::surroundings::{HOST, TOKEN_FILE};
use crate::variables;

/// Runs a verb: on this host, on another one, or as a client of the server that was named.
pub(crate) fn call(verb: &Verb, global: &Global, matches: ArgMatches) -> Result<u8, Failure> {
    let places = places(verb, global, &matches)?;
    match places.as_slice() {
        [] => call_here(verb, global, matches),
        [RemotePlace::Ssh(host)] => ssh::call(verb, host, is_detached(&matches)),
        [RemotePlace::Server(host)] => {
            let done = ask(verb, global, matches, host);
            // The low codes of these verbs belong to the command.
            done.map_err(|failure| match verb.usage_failure {
                FailureKind::NotStarted => before_the_start(failure),
                _ => failure,
            })
        }
        several if verb.name == "ps" => hosts::ps(several, global, &usage::read(verb, matches)?),
        _ => Err(Failure::new(
            verb.usage_failure,
            format!("`penfold {}` acts on one host at a time", verb.name),
        )
        .hint("give `--host` once; `penfold ps` takes several")),
    }
}

/// Runs a verb on this host.
pub(crate) fn call_here(verb: &Verb, global: &Global, matches: ArgMatches) -> Result<u8, Failure> {
    (verb.call)(global, matches)
}

fn is_detached(matches: &ArgMatches) -> bool {
    matches!(matches.try_get_one::<bool>("detach"), Ok(Some(true)))
}

/// The places that were named; none for this host.
fn places(verb: &Verb, global: &Global, matches: &ArgMatches) -> Result<Vec<RemotePlace>, Failure> {
    let has_status = matches!(matches.try_get_one::<i32>("status_fd"), Ok(Some(_)));
    let is_local = matches!(verb.places, Places::Here) || has_status;
    match global.host.as_slice() {
        [] if is_local => Ok(Vec::new()),
        [] => {
            let variable = variables::get(OsStr::new(HOST)).filter(|text| !text.is_empty());
            let Some(text) = variable else {
                // It was read before, when the file was.
                return Ok(global.config.host.iter().filter_map(|host| host.parse().ok()).collect());
            };
            let place = text.to_string_lossy().parse().map_err(|error: InvalidPlace| {
                Failure::new(verb.usage_failure, format!("the variable `{HOST}` is wrong")).because(error)
            })?;
            Ok(vec![place])
        }
        _ if is_local && !has_status => Err(refused(verb)),
        [RemotePlace::Ssh(_)] if has_status => {
            let sentence = "`--status-fd` works on this host only, not on another one";
            Err(Failure::new(FailureKind::NotStarted, sentence).hint("use `--report -`"))
        }
        hosts => Ok(hosts.to_vec()),
    }
}

/// Runs a verb as a client of a server.
fn ask(verb: &Verb, global: &Global, matches: ArgMatches, host: &ServerAddress) -> Result<u8, Failure> {
    let Places::All(call) = verb.places else { return Err(refused(verb)) };
    call(global, Client::new(host.clone(), token(global)?)?, matches)
}

fn refused(verb: &Verb) -> Failure {
    Failure::new(verb.usage_failure, format!("`penfold {}` works on this host only", verb.name))
        .hint(format!("leave out `--host`, or unset `{HOST}`"))
}

/// Reads the token: that of the first line of the file that is neither empty nor a comment.
fn token(global: &Global) -> Result<Option<String>, Failure> {
    let variable = || variables::get(OsStr::new(TOKEN_FILE)).filter(|path| !path.is_empty());
    let named = global.token_file.clone().or_else(|| variable().map(PathBuf::from));
    let Some(path) = named.or_else(|| global.config.token_file.clone()) else { return Ok(None) };
    let sentence = format!("cannot read the token in `{}`", path.display());
    let text = std::fs::read_to_string(&path)
        .map_err(|error| Failure::new(FailureKind::from(&error), sentence.clone()).because(error))?;
    match text.lines().find_map(TokenLine::parse).map(|line| line.token) {
        Some(token) if token.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(Some(token.to_owned())),
        Some(_) => {
            Err(Failure::new(FailureKind::Usage, sentence).because("it has other characters than a token"))
        }
        None => Err(Failure::new(FailureKind::Usage, sentence).because("it is empty")),
    }
}

/// Gives a failure the code that `run`, `exec` and `wait` have for it.
fn before_the_start(failure: Failure) -> Failure {
    match failure.kind() {
        FailureKind::StillThere => failure.with_kind(FailureKind::Unverified),
        FailureKind::Other
        | FailureKind::Usage
        | FailureKind::NoSuchId
        | FailureKind::Ambiguous
        | FailureKind::NotPermitted => Failure::not_started(failure),
        _ => failure,
    }
}
