//! `penfold gc`: its flags.

use std::time::Duration;

use clap::Args;

use super::Verb;
use crate::exit_codes;
use crate::value;

/// The verb `gc`.
pub(crate) const VERB: Verb = Verb {
    name: "gc",
    aliases: &["prune"],
    about: "Remove what outlived its sandbox",
    description: "Ends and removes what `penfold doctor` names: processes, cgroups and directories whose sandbox \
        has no supervisor any more. Acts only on what is ours, old enough and completely seen; whatever could \
        not be read counts as alive and stays. Asks first on a terminal; elsewhere it needs -f.",
    examples: &[
        ("penfold gc -n", "show what would be removed"),
        ("penfold gc -f", "remove it without asking, as in a timer"),
        ("penfold gc -f --older-than 0", "remove also what is younger than ten minutes"),
    ],
    usage_exit: exit_codes::USAGE,
    define: GcArgs::augment_args,
    call: |global, matches| crate::gc::gc(global, &super::read(&VERB, matches)?),
};

/// What `penfold gc` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct GcArgs {
    /// Show what would be removed and change nothing.
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Do not ask.
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Leave alone what is younger than this.
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        default_value = "10m"
    )]
    pub(crate) older_than: Duration,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
