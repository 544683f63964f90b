//! `penfold reap`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::args::patience::Patience;
use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind};
use crate::foreign::{self, Request, Target};
use crate::value::{self, Signal};

/// The verb `reap`.
pub(crate) const VERB: Verb = Verb {
    name: "reap",
    aliases: &[],
    about: "End a process tree that penfold did not start",
    description: "Ends processes that penfold did not start: a tree, a process group, a session, a cgroup, all \
        processes with a variable in their environment, several of these together, or all that tests have left below a directory. penfold signals each process through a pidfd, so a reused pid \
        never gets a signal, and searches for new members until there are none. Exit code 0 means that all members were \
        observed gone. penfold never ends pid 1, itself or its own ancestors. With --home, processes count that have their \
        working directory, program, or an open or mapped file below DIR. So do those whose arguments name DIR, if they have the user of \
        DIR and started after DIR was made. Sandboxes with records elsewhere are left alone.",
    examples: &[
        ("penfold reap -n --pid 4121", "list the processes that would be ended"),
        ("penfold reap --pid 4121 --grace 2s", "end the tree below 4121: TERM, 2 s later KILL"),
        ("penfold reap --env BUILD_ID=1729", "end every process of a build, daemons included"),
        (
            "penfold reap --pid 4121 --cgroup /sys/fs/cgroup/freezer/job_7",
            "end a tree and the processes of a cgroup, v1 or v2",
        ),
        (
            "penfold reap --home /tmp/my-tests",
            "end sandboxes and processes that tests left below a directory",
        ),
    ],
    usage_failure: FailureKind::Usage,
    define: ReapArgs::augment_args,
    places: Places::Hosts,
    call: |global, matches| reap(global, usage::read(&VERB, matches)?),
};

/// The arguments of `penfold reap`.
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
        short = 's',
        long,
        value_name = "SIGNAL",
        value_parser = value::signal,
        allow_hyphen_values = true,
        default_value = "TERM"
    )]
    pub(crate) signal: Signal,
    #[command(flatten)]
    pub(crate) patience: Patience,
    /// List the processes that would be ended, and change nothing.
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Ends what tests have left below a directory, as `reap --home` does without other flags.
pub(crate) fn home(global: &Global, home: PathBuf) -> Result<u8, Failure> {
    let command = ReapArgs::augment_args(clap::Command::new(VERB.name).no_binary_name(true));
    let matches = command.try_get_matches_from([OsString::from("--home"), home.into()]);
    let matches = matches.map_err(|error| usage::failure(&error, Some(&VERB)))?;
    reap(global, usage::read(&VERB, matches)?)
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
