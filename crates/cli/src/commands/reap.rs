//! `penfold reap`.

use std::time::Duration;

use clap::Args;

use crate::args::patience::Patience;
use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::failure::{Failure, FailureKind};
use crate::foreign::{self, Request, Target};
use crate::value::{self, Signal};

/// The verb `reap`.
pub(crate) const VERB: Verb = Verb {
    name: "reap",
    aliases: &[],
    about: "End a process tree that penfold did not start",
    description: "Ends processes that penfold did not start: a tree over all its threads, a process group, a \
        session, a cgroup, or all that carry a variable in their environment. Each is held by a handle before \
        it is signalled, so a reused number is never hit; new members are looked for until there are none. \
        Success means that all of them were observed gone. Never touches pid 1, penfold itself or what it \
        runs under.",
    examples: &[
        ("penfold reap -n --pid 4121", "show what would be ended"),
        ("penfold reap --pid 4121 --grace 2s", "end the tree below 4121: TERM, 2 s later KILL"),
        ("penfold reap --env BUILD_ID=1729", "end every process of a build, wherever it went"),
    ],
    usage_failure: FailureKind::Usage,
    define: ReapArgs::augment_args,
    call: |global, matches| reap(global, usage::read(&VERB, matches)?),
};

/// What `penfold reap` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReapArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Time between the polite signal and KILL.
    #[arg(
        short = 't',
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        default_value = "10s"
    )]
    pub(crate) grace: Duration,
    /// The polite signal.
    #[arg(
        long,
        value_name = "SIGNAL",
        value_parser = value::signal,
        allow_hyphen_values = true,
        default_value = "TERM"
    )]
    pub(crate) signal: Signal,
    #[command(flatten)]
    pub(crate) patience: Patience,
    /// Show what would be ended and change nothing.
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Ends processes that penfold did not start.
pub(crate) fn reap(global: &Global, args: ReapArgs) -> Result<u8, Failure> {
    let request = Request {
        target: args.target,
        signal: args.signal.sendable()?,
        grace: args.grace,
        patience: args.patience.patience,
        dry_run: args.dry_run,
        json: args.json,
    };
    foreign::end(global, &request)
}
