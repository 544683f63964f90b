//! What `penfold run -d` keeps for a restart, and how the next life starts from it.

use std::ffi::OsString;

use penfold_request::{SandboxSpec, StartRequest};
use penfold_state::names::Name;
use penfold_state::{Intent, Kept, Launch, LaunchSource, Life, OwnerExit, Record, Spec};
use rustix::fs::Mode;

use super::request::Caller;
use super::{VERB, run_with, spec_file};
use crate::args::verb::Global;
use crate::commands::command_line;
use crate::config::Config;
use crate::failure::{Failure, FailureKind};
use crate::{surroundings, variables};

/// Keeps what a restart needs, if the sandbox can be restarted.
pub(super) fn keep(request: &StartRequest, spec: &mut Spec) {
    let Some(detach) = &mut spec.detach else { return };
    if detach.remove || spec.outside.is_some() || spec.on_owner_exit != OwnerExit::Keep {
        return;
    }
    // It consists of texts and numbers.
    let Ok(request) = serde_json::to_vec(request) else { return };
    let directory = std::env::current_dir().unwrap_or_default();
    // A credential of penfold is kept only if the command gets it.
    let is_kept = |key: &OsString| {
        let bytes = key.as_encoded_bytes();
        let is_token = bytes.starts_with(b"PENFOLD_") && bytes.ends_with(b"TOKEN");
        !is_token || spec.environment.iter().any(|(other, _)| other == key)
    };
    let environment = variables::all().filter(|(key, _)| is_kept(key)).collect();
    let umask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::umask(umask);
    let launch = Launch { request: Kept::Request(request), environment, directory, umask: umask.bits() };
    detach.launch = Some(LaunchSource::New(launch.encode()));
}

/// A sandbox that has ended, and is restarted.
pub(crate) struct Former {
    /// Its record, whose lock passes to the next life.
    pub(crate) record: Record,
    pub(crate) intent: Intent,
    /// Its name, if it is held already.
    pub(crate) name: Option<Name>,
}

/// Starts the next life of an ended sandbox, in the environment and directory of its first one.
///
/// # Errors
/// When the sandbox does not start, or another command has restarted the former life.
pub(crate) fn next_life(
    global: &Global,
    former: Former,
    launch: &Launch,
    failures: u32,
) -> Result<u8, Failure> {
    let Former { record, intent, name } = former;
    let damaged = || {
        Failure::new(
            FailureKind::NotStarted,
            format!("the launch file of sandbox {} is damaged", record.name()),
        )
    };
    rustix::process::umask(Mode::from_bits_truncate(launch.umask));
    let asked = match &launch.request {
        Kept::Request(text) => serde_json::from_slice(text).ok().map(Caller::of),
        Kept::Words(words) => of_words(words),
    };
    let (asked, mut caller) = asked.ok_or_else(damaged)?;
    // What the first life has replaced is gone, and its caller may be.
    (caller.replace, caller.owner) = (false, None);
    caller.id = Some(intent.id);
    // The request has what the configuration said at the first start.
    let root = Some(surroundings::absolute_root(global));
    let global = Global { root, config: Config::default(), ..global.clone() };
    let life = Life { restart_of: String::new(), restarts: record.files().life(), failures };
    run_with(&global, asked, &caller, |spec| {
        spec.claim = name;
        if let Some(detach) = &mut spec.detach {
            detach.life = Some(life);
            detach.launch = Some(LaunchSource::Former { record, is_requested: failures == 0 });
        }
    })
}

/// Reads the words that earlier versions kept. They had flags for what only a file or a server could ask for.
fn of_words(words: &[OsString]) -> Option<(SandboxSpec, Caller)> {
    let end = words.iter().position(|word| word == "--").unwrap_or(0);
    let mut hidden = SandboxSpec::default();
    let mut kept = vec![OsString::from("penfold")];
    for (at, word) in words.iter().enumerate() {
        let flag = word.to_str().filter(|_| at < end).and_then(|word| word.strip_prefix("--"));
        match flag.map(|flag| flag.split_once('=').unwrap_or((flag, ""))) {
            Some(("without-config", _)) => {}
            Some(("inherit-env", value)) => hidden.inherit_env = Some(value.parse().ok()?),
            Some(("stop", value)) => hidden.stop = Some(serde_json::from_str(value).ok()?),
            Some(("resources", value)) => hidden = hidden.over(serde_json::from_str(value).ok()?),
            _ => kept.push(word.clone()),
        }
    }
    let call = command_line::parse(|| kept.iter().cloned()).ok()?;
    let call = Some(call).filter(|call| call.verb.name == VERB.name)?;
    let without_config = Global { config: Config::default(), ..call.global };
    let (spec, caller) = spec_file::request(&without_config, call.matches).ok()?;
    Some((spec.over(hidden), caller))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 27.9
    #[test]
    fn the_words_of_earlier_versions_are_read() {
        let line = r#"--root|/r|run|-d|--without-config|--contain=pidns|--resources={"own":["path=/p"]}|--stop={"command":["true"]}|--inherit-env=false|--|x|--stop=y"#;
        let words: Vec<OsString> = line.split('|').map(OsString::from).collect();
        let (spec, caller) = of_words(&words).unwrap();
        let expected = r#"{"command":["x","--stop=y"],"inherit_env":false,"contain":"pidns","own":["path=/p"],"stop":{"command":["true"]}}"#;
        assert_eq!(serde_json::to_string(&spec).unwrap(), expected);
        assert!(caller.detach);
    }
}
