//! `penfold restart`.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use clap::Args;
use penfold_control::{EndLimits, EndMethod, SandboxRef};
use penfold_state::{Files, Intent, Launch, Life};

use super::next_life;
use super::stop::StopArgs;
use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::find::Among;
use crate::sandboxes::here::Here;
use crate::sandboxes::tally::{EndResult, Tally};
use crate::sandboxes::{Sandboxes as _, select};
use crate::value::Signal;
use crate::{exit_codes, surroundings};

/// The verb `restart`.
pub(crate) const VERB: Verb = Verb {
    name: "restart",
    aliases: &[],
    about: "Stop detached sandboxes, and start them again",
    description: "Stops a detached sandbox as `penfold stop` does, verifies that nothing of it is left, starts it again with the \
        same flags, command, environment and directory, and prints its id. Id, name and log stay; `penfold report --life N` shows the end of each life. A sandbox that has ended is only \
        started. If something is left, nothing is started, and the exit code is 120. The environment and the directory of the \
        caller play no part. `penfold run -d --restart on-failure` restarts a sandbox whenever its command fails.",
    examples: &[
        ("penfold restart web", "stop the sandbox web, and start it again"),
        ("penfold restart -t 2s web", "the same, and kill what is left after two seconds"),
    ],
    usage_failure: FailureKind::Usage,
    define: RestartArgs::augment_args,
    places: Places::Hosts,
    call: |global, matches| restart(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold restart`.
#[derive(Args, Clone, Debug)]
struct RestartArgs {
    #[command(flatten)]
    stop: StopArgs,
}

fn restart(global: &Global, RestartArgs { stop: args }: &RestartArgs) -> Result<u8, Failure> {
    let coloured = global.color.wanted(&std::io::stderr());
    let signal = args.signal.map(Signal::sendable).transpose()?;
    let mut here = Here::for_many(global)?;
    let selection =
        select::select(&mut here, &args.ids, Among::Living, args.force || args.dry_run, "restart")?;
    let mut tally = Tally::default();
    tally.missed(global, &selection.missed);
    let (mut found, mut launches) = (Vec::new(), Vec::new());
    // Held to the end: of two restarts at once, one gives up.
    let mut locks = Vec::new();
    for known in selection.found {
        match lock(&known).and_then(|lock| Ok((lock, launch(&known)?))) {
            Ok((lock, launch)) => {
                found.push(known);
                launches.push(launch);
                locks.push(lock);
            }
            Err(failure) => tally.failed(&failure, coloured),
        }
    }
    if args.dry_run {
        for known in &found {
            tally.done(&known.id);
        }
        return tally.finish();
    }
    let how = EndMethod::Stop { signal, grace: args.grace };
    let limits =
        EndLimits { patience: args.patience.patience, verb: Some(VERB.name), ..EndLimits::default() };
    let results = here.end(&found, how, &limits, "stopping");
    let mut is_left = false;
    for ((known, launch), result) in found.iter().zip(launches).zip(results) {
        match result {
            EndResult::Gone => match start(global, &known.id, &launch) {
                Ok(code) => tally.note(code),
                Err(failure) => tally.failed(&failure, coloured),
            },
            left => {
                is_left = true;
                tally.end_result(global, &known.id, left);
            }
        }
    }
    let code = tally.finish()?;
    Ok(if is_left { exit_codes::UNVERIFIED } else { code })
}

/// Keeps other commands from restarting a sandbox. `None` if its record has no launch file.
fn lock(known: &SandboxRef) -> Result<Option<OwnedFd>, Failure> {
    let Some(files) = &known.record else { return Ok(None) };
    let refused = || Failure::new(FailureKind::Other, format!("cannot restart sandbox {}", known.id));
    let lock = match files.lock_launch() {
        Ok(Some(lock)) => lock,
        Ok(None) => return Err(refused().because("another command restarts it")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused().because(error)),
    };
    let life = |intent: &Intent| intent.life().map_or(1, Life::number);
    let intent = files.intent().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => refused().because("its `intent.json` is missing"),
        _ => refused().because(format!("cannot read its `intent.json`: {error}")),
    })?;
    let is_same = known.intent.as_ref().is_none_or(|own| life(own) == life(&intent));
    if is_same { Ok(Some(lock)) } else { Err(refused().because("another command has restarted it")) }
}

/// Reads what a sandbox was started with.
fn launch(known: &SandboxRef) -> Result<Launch, Failure> {
    let sentence = format!("cannot restart sandbox {}", known.id);
    let refused = |why: &str| Failure::new(FailureKind::Other, sentence.clone()).because(why);
    let read = known.record.as_ref().map(Files::launch).transpose().map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => refused("its launch file is damaged"),
        _ => refused(&format!("cannot read its launch file: {error}")),
    })?;
    if let Some(launch) = read.flatten() {
        // Before the sandbox is ended.
        return match launch.missing_directory().or_else(|| known.intent.as_ref().and_then(missing_workspace))
        {
            None => Ok(launch),
            Some(why) => Err(refused(&why)),
        };
    }
    // A leaf or the memory of survivors can tell the intent of a sandbox without a record.
    let intent = known.intent.as_ref().filter(|_| known.record.is_some());
    Err(match intent.map(|intent| intent.detached.as_ref()) {
        None => refused("its record is lost"),
        Some(None) => refused("it runs in the foreground, for its caller"),
        Some(Some(detached)) if detached.remove => refused("it was started with `--rm`"),
        Some(Some(detached)) if detached.restart.is_some() => refused("its launch file is lost"),
        Some(Some(_)) => refused(
            "it was restarted already, was adopted, is outside of another sandbox, ends with its owner, or its launch file is lost",
        )
        .hint("`penfold ps` lists what runs"),
    })
}

/// Returns why the command cannot start in its directory. Of a directory that penfold makes for each life, or that the command sees in
/// another place, nothing is known.
fn missing_workspace(intent: &Intent) -> Option<String> {
    if !intent.resources.is_empty() || intent.scratch.is_some() || intent.profile.is_some() {
        return None;
    }
    let workspace = intent.workspace.as_ref()?;
    let is_missing = workspace.try_exists().is_ok_and(|exists| !exists);
    is_missing.then(|| {
        format!(
            "the directory `{}`, in which its command starts, does not exist any more",
            workspace.display()
        )
    })
}

/// Starts the next life in a process of its own, which prints the id or what is wrong.
fn start(global: &Global, id: &str, launch: &Launch) -> Result<u8, Failure> {
    let mut command = Command::new(surroundings::program());
    command.arg(next_life::VERB.name).arg("--root").arg(surroundings::absolute_root(global)).arg(id);
    command.args(global.quiet.then_some("--quiet"));
    command.env_clear().envs(launch.environment.iter().map(|(key, value)| (key, value)));
    let status = command.current_dir(&launch.directory).stdin(Stdio::null()).status();
    let status = status.map_err(|error| {
        let failure = Failure::new(FailureKind::Other, format!("cannot start sandbox {id} again"));
        match launch.missing_directory() {
            Some(why) => failure.because(why),
            None => failure.because(error),
        }
    })?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(exit_codes::FAILURE))
}
