//! `penfold next-life`: waits, and starts the next life of an ended sandbox in its record. `penfold restart` and the last process of
//! a sandbox start it, in the environment and directory that are kept in the record; users do not.
//!
//! While it waits, it holds the lock of the record and the name, and nothing else of the sandbox exists.

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use penfold_launch::FormerLife;
use penfold_state::events::{EventKind, Journal};
use penfold_state::names::{self, NameError};
use penfold_state::{Files, Registry};
use penfold_sys::signal::{is_ignored, set_default, set_ignored};
use penfold_teardown::Resource as _;
use rustix::process::Signal;

use super::run;
use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::{exit_codes, surroundings, value};

/// The verb `next-life`.
pub(crate) const VERB: Verb = Verb {
    name: "next-life",
    aliases: &[],
    about: "Start an ended sandbox again",
    description: "Starts an ended sandbox again under its id, for `penfold restart` and `penfold run --restart`.",
    examples: &[
        ("penfold next-life 3f9a1c2b7d04", "start it, as `penfold restart` does"),
        ("penfold next-life --failures=1 --wait=100ms 3f9a1c2b7d04", "start it because its command failed"),
    ],
    usage_failure: FailureKind::NotStarted,
    define: NextLifeArgs::augment_args,
    places: Places::Here,
    call: |global, matches| next_life(global, &usage::read(&VERB, matches)?),
};

#[derive(Args, Clone, Debug)]
struct NextLifeArgs {
    /// The sandbox.
    id: String,
    /// The number of lives in a row that failed.
    #[arg(long, value_name = "N", default_value = "0")]
    failures: u32,
    /// The time before the next start.
    #[arg(long, value_name = "DURATION", value_parser = value::duration, default_value = "0")]
    wait: Duration,
    /// The descriptor of the record's directory, with its lock.
    #[arg(long, value_name = "N")]
    lock_fd: Option<i32>,
}

fn next_life(global: &Global, args: &NextLifeArgs) -> Result<u8, Failure> {
    let until = Instant::now() + args.wait;
    let root = surroundings::absolute_root(global);
    let begun = begin(global, args, &root, until);
    if let (Err(failure), true) = (&begun, args.failures > 0) {
        tell(&root, &args.id, failure.sentence());
    }
    begun
}

fn begin(global: &Global, args: &NextLifeArgs, root: &Path, until: Instant) -> Result<u8, Failure> {
    let sentence = &format!("cannot restart sandbox {}", args.id);
    let refused = |why: &str| Failure::new(FailureKind::NotStarted, sentence).because(why);
    let dir = args.lock_fd.map(penfold_sys::descriptors::take_one).transpose();
    let dir = dir.or_fail(FailureKind::NotStarted, sentence)?;
    let registry = Registry::open_existing(root).or_fail(FailureKind::NotStarted, sentence)?;
    let registry = registry.ok_or_else(|| refused("it has no record"))?;
    let record = match dir {
        Some(dir) => registry.resume_with(&args.id, dir),
        None => registry.resume(&args.id),
    };
    let record = record.or_fail(FailureKind::NotStarted, sentence)?;
    let record = record.ok_or_else(|| refused("another command has restarted or removed it"))?;
    if !record.files().has_ended() {
        return Err(refused("it has not ended"));
    }
    let intent = record.intent().or_fail(FailureKind::NotStarted, sentence)?;
    let name = match intent.held_name().map(|name| names::take_name(root, &name, &intent.id)) {
        Some(Err(error @ NameError::Taken { .. })) => return Err(refused(&error.to_string())),
        // As at the first start, a name that cannot be kept prevents nothing.
        taken => taken.and_then(Result::ok),
    };
    penfold_sys::crash_point!("waiting");
    if !args.wait.is_zero() {
        penfold_sys::memory::drop_unneeded_pages();
    }
    if args.failures > 0 && !await_start(record.files(), until) {
        if let Some(mut name) = name {
            let _ = name.release(false);
        }
        tell(root, &args.id, "it was ended while it waited for its next start".to_owned());
        return Ok(exit_codes::SUCCESS);
    }
    let launch = record.files().launch().or_fail(FailureKind::NotStarted, sentence)?;
    let launch = launch.ok_or_else(|| refused("another command has ended or removed it"))?;
    run::restart::next_life(global, FormerLife { record, intent, name }, &launch, args.failures)
}

/// Waits for the next start, deaf to the signals of users: no command runs now. False if another command has ended the sandbox.
fn await_start(files: &Files, until: Instant) -> bool {
    let deaf: Vec<i32> =
        SIGNALS.into_iter().map(Signal::as_raw).filter(|&signal| !is_ignored(signal)).collect();
    for &signal in &deaf {
        set_ignored(signal);
    }
    let starts = files.await_start(until);
    // The command gets what it was started with.
    for &signal in &deaf {
        set_default(signal);
    }
    starts
}

/// The signals that end a process and can be ignored, as far as people send them.
const SIGNALS: [Signal; 7] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::ALARM, Signal::TERM];

/// Writes an event: nobody reads the messages of a restart without a request.
fn tell(root: &Path, id: &str, reason: String) {
    let registry = Registry::open_existing(root).ok().flatten();
    let Some(files) = registry.and_then(|registry| registry.look(id).ok().flatten()) else { return };
    if let Ok(intent) = files.intent() {
        Journal::of(&files, &intent).publish([EventKind::NoRestart { reason }]);
    }
}
