//! `penfold adopt`: its flags.

use std::time::Duration;

use clap::Args;
use rustix::process::Pid;

use super::Verb;
use crate::exit_codes;
use crate::value::{self, Label};

/// The verb `adopt`.
pub(crate) const VERB: Verb = Verb {
    name: "adopt",
    aliases: &[],
    about: "Put a process tree that penfold did not start under a handle",
    description: "Makes a detached sandbox around a process and all that descends from it, and prints its id: from then \
        on it has a name, a lease and an end like those that penfold started. Where that can be, the tree is moved into \
        a cgroup of its own. The sandbox ends when the process ends, on request, or when its lease runs out. How the \
        process ended is told to its parent only, so that the sandbox has no exit code. Never takes in pid 1, penfold \
        itself, what it runs under, or members of a sandbox.",
    examples: &[
        ("penfold adopt 4121", "take in a stray that `penfold doctor --foreign` shows"),
        ("penfold adopt --name web --ttl 2h 4121", "name it, and end it in two hours"),
    ],
    usage_exit: exit_codes::USAGE,
    define: AdoptArgs::augment_args,
    call: |global, matches| crate::adopt::adopt(global, super::read(&VERB, matches)?),
};

/// What `penfold adopt` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct AdoptArgs {
    /// The process; all that descends from it is taken in with it.
    #[arg(value_name = "PID", value_parser = value::pid, allow_hyphen_values = true)]
    pub(crate) pid: Pid,
    /// Name of the sandbox.
    #[arg(long, value_name = "NAME", value_parser = value::name)]
    pub(crate) name: Option<String>,
    /// Attach a label; may be repeated, the last of a key counts.
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = value::label)]
    pub(crate) label: Vec<Label>,
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        help = "End the sandbox after this time, unless `penfold extend` renews it; 0 means never"
    )]
    pub(crate) ttl: Option<Duration>,
}
