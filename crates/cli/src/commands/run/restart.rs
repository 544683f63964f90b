//! The next life of a detached sandbox, from what `penfold run -d` has kept.

use std::ffi::OsString;

use penfold_launch::FormerLife;
use penfold_launch::caller::Caller;
use penfold_request::SandboxSpec;
use penfold_state::Launch;

use super::{VERB, run_with, spec_file};
use crate::args::verb::Global;
use crate::commands::command_line;
use crate::config::Config;
use crate::failure::Failure;
use crate::surroundings;

/// Starts the next life of an ended sandbox, in the environment and directory of its first one.
///
/// # Errors
/// When the sandbox does not start, or another command has restarted the former life.
pub(crate) fn next_life(
    global: &Global,
    former: FormerLife,
    launch: &Launch,
    failures: u32,
) -> Result<u8, Failure> {
    let (asked, caller) = former.request(launch, of_words)?;
    // The request has what the configuration said at the first start.
    let root = Some(surroundings::absolute_root(global));
    let global = Global { root, config: Config::default(), ..global.clone() };
    run_with(&global, asked, &caller, |spec| former.pass_on(spec, failures))
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
