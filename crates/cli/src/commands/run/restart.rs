//! What `penfold run -d` keeps for a restart, and how the next life starts from it.

use std::ffi::OsString;

use penfold_state::names::Name;
use penfold_state::{Intent, Launch, LaunchSource, Life, OnFailure, OwnerExit, Record, Spec};
use rustix::fs::Mode;

use super::{OnOwnerExit, RunArgs, VERB, run_with};
use crate::args::usage;
use crate::args::verb::Global;
use crate::commands::command_line;
use crate::config::Config;
use crate::failure::{Failure, FailureKind};
use crate::{surroundings, variables};

/// Parses the value of `--restart`.
pub(super) fn policy(text: &str) -> Result<OnFailure, String> {
    let wrong = || "it is neither `on-failure` nor `on-failure:N`".to_owned();
    match text.strip_prefix("on-failure").ok_or_else(wrong)? {
        "" => Ok(OnFailure { most: None }),
        most => {
            let most = most.strip_prefix(':').and_then(|most| most.parse().ok()).filter(|most| *most > 0);
            most.map(|most| OnFailure { most: Some(most) }).ok_or_else(wrong)
        }
    }
}

/// Refuses `--restart` for a sandbox that cannot be restarted.
pub(super) fn check(args: &RunArgs) -> Result<(), Failure> {
    let ends_with_owner = matches!(args.on_owner_exit, Some(OnOwnerExit::Kill | OnOwnerExit::Stop));
    let flags = [(args.rm, "--rm"), (args.outside, "--outside"), (ends_with_owner, "--on-owner-exit")];
    match flags.into_iter().find(|(given, _)| *given && args.detached.restart.is_some()) {
        None => Ok(()),
        Some((_, flag)) => Err(Failure::new(
            FailureKind::NotStarted,
            format!("`--restart` cannot be used together with `{flag}`"),
        )),
    }
}

/// Keeps what a restart needs. `words` are those that mean the same as the command line, if they are others.
pub(super) fn keep(words: Option<Vec<OsString>>, spec: &mut Spec) {
    let Some(detach) = &mut spec.detach else { return };
    if detach.remove || spec.on_owner_exit != OwnerExit::Keep {
        return;
    }
    let words = match words {
        Some(words) => [VERB.name.into()].into_iter().chain(words).collect(),
        None => std::env::args_os().skip(1).collect(),
    };
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
    let launch = Launch { words, environment, directory, umask: umask.bits() };
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
    let words = || std::iter::once("penfold".into()).chain(launch.words.iter().cloned());
    let call =
        command_line::parse(words).ok().filter(|call| call.verb.name == VERB.name).ok_or_else(damaged)?;
    let mut args: RunArgs = usage::read(&VERB, call.matches)?;
    // What the first life has replaced is gone, and its caller may be.
    (args.replace, args.owner) = (false, None);
    args.id = Some(intent.id);
    // The words have what the configuration said at the first start.
    let root = Some(surroundings::absolute_root(global));
    let global = Global { root, config: Config::default(), ..call.global };
    let life = Life { restart_of: String::new(), restarts: record.files().life(), failures };
    run_with(&global, args, |spec| {
        spec.claim = name;
        if let Some(detach) = &mut spec.detach {
            detach.life = Some(life);
            detach.launch = Some(LaunchSource::Former { record, is_requested: failures == 0 });
        }
    })
}
