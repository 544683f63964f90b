//! `penfold next-life`: starts the next life of an ended sandbox. `penfold restart` and the last process of a sandbox start it, in
//! the environment and directory that are kept in the record; users do not.

use std::time::Duration;

use clap::Args;
use penfold_control::Resolver;
use penfold_state::events::{EventKind, Journal};
use penfold_state::{Files, Registry};

use super::run;
use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::{surroundings, value};

/// The verb `next-life`.
pub(crate) const VERB: Verb = Verb {
    name: "next-life",
    aliases: &[],
    about: "Start an ended sandbox again",
    description: "Starts an ended sandbox again under a new id, for `penfold restart` and `penfold run --restart`.",
    examples: &[
        ("penfold next-life 3f9a1c2b7d04", "start it, as `penfold restart` does"),
        ("penfold next-life --failures=1 --wait=100ms 3f9a1c2b7d04", "start it because its command failed"),
    ],
    usage_failure: FailureKind::NotStarted,
    define: NextLifeArgs::augment_args,
    call: |global, matches| next_life(global, &usage::read(&VERB, matches)?),
};

/// The lives of a sandbox whose records are kept, the new one included.
const KEPT_LIVES: usize = 3;

#[derive(Args, Clone, Debug)]
struct NextLifeArgs {
    /// The former life.
    id: String,
    /// The number of lives in a row that failed.
    #[arg(long, value_name = "N", default_value = "0")]
    failures: u32,
    /// The time before the command runs.
    #[arg(long, value_name = "DURATION", value_parser = value::duration, default_value = "0")]
    wait: Duration,
}

fn next_life(global: &Global, args: &NextLifeArgs) -> Result<u8, Failure> {
    let sentence = &format!("cannot restart sandbox {}", args.id);
    let root = surroundings::absolute_root(global);
    let registry = Registry::open_existing(&root).or_fail(FailureKind::NotStarted, sentence)?;
    let former = registry.as_ref().and_then(|registry| registry.look(&args.id).ok().flatten());
    let former =
        former.ok_or_else(|| Failure::new(FailureKind::NotStarted, sentence).because("it has no record"))?;
    let launch = former.launch().or_fail(FailureKind::NotStarted, sentence)?;
    let launch = launch.ok_or_else(|| {
        Failure::new(FailureKind::NotStarted, sentence).because("another command has restarted or removed it")
    })?;
    match run::restart::next_life(global, &former, &launch, args.failures, args.wait) {
        Ok((id, code)) => {
            forget_old_lives(&Resolver::new(&root), &id);
            Ok(code)
        }
        Err(failure) => {
            if args.failures > 0 {
                tell(&former, &failure);
            }
            Err(failure)
        }
    }
}

/// Removes the records of lives before the last ones, so that a command that always fails fills no disk.
fn forget_old_lives(resolver: &Resolver, newest: &str) {
    let mut id = newest.to_owned();
    for number in 1.. {
        let Ok(known) = resolver.resolve(&id) else { return };
        let life = known.intent.as_ref().and_then(|intent| intent.detached.as_ref()?.life.as_ref());
        let former = life.map(|life| life.restart_of.clone());
        // It is refused for a life that has not ended, and for one that is removed already.
        if number > KEPT_LIVES
            && penfold_control::forget(resolver, &known, &penfold_control::Limits::default()).is_err()
        {
            return;
        }
        let Some(former) = former else { return };
        id = former;
    }
}

/// Writes an event: nobody reads the messages of a restart without a request.
fn tell(former: &Files, failure: &Failure) {
    if let Ok(intent) = former.intent() {
        let reason = failure.sentence();
        Journal::of(former, &intent).publish([EventKind::NoRestart { reason }]);
    }
}
