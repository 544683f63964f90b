//! `penfold back-off`: waits, and then becomes the command. A sandbox that is restarted begins with it; users do not call it.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::Timespec;

use crate::args::usage;
use crate::args::verb::Verb;
use crate::failure::FailureKind;
use crate::{execute, surroundings, value};

/// The verb `back-off`.
pub(crate) const VERB: Verb = Verb {
    name: "back-off",
    aliases: &[],
    about: "Wait, and become a command",
    description: "Waits, and becomes the command, for a sandbox that `penfold run --restart` has started again.",
    examples: &[
        ("penfold back-off --wait=100ms -- make", "run make a moment later"),
        ("penfold back-off --wait=1m -- make", "run make a minute later"),
    ],
    usage_failure: FailureKind::NotStarted,
    define: BackOffArgs::augment_args,
    call: |_, matches| {
        let args: BackOffArgs = usage::read(&VERB, matches)?;
        wait(args.wait);
        Err(execute::program(&args.command, Vec::new(), Vec::new()))
    },
};

/// Waits, also across interruptions.
fn wait(time: Duration) {
    let until = Instant::now().checked_add(time);
    while let Some(left) =
        until.map(|until| until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    {
        let _ = rustix::event::poll(&mut [], Timespec::try_from(left).ok().as_ref());
    }
}

/// The words in front of a command that make it wait.
pub(super) fn words(wait: Duration) -> Vec<OsString> {
    let wait = format!("--wait={}ms", wait.as_millis());
    vec![surroundings::program().into(), VERB.name.into(), wait.into(), "--".into()]
}

#[derive(Args, Clone, Debug)]
struct BackOffArgs {
    /// The time.
    #[arg(long, value_name = "DURATION", value_parser = value::duration)]
    wait: Duration,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}
