//! `penfold gc`: its flags.

use std::time::Duration;

use clap::Args;
use penfold_control::leaks::Thing;

use super::Verb;
use super::patience::Patience;
use crate::exit_codes;
use crate::value;

/// The verb `gc`.
pub(crate) const VERB: Verb = Verb {
    name: "gc",
    aliases: &["prune"],
    about: "Remove what outlived its sandbox",
    description: "Ends and removes what `penfold doctor` names: sandboxes that have no supervisor any more, whatever \
        their age; processes, cgroups and directories without a record, and the records of detached sandboxes that \
        have ended, with their log and exit code, once they are old enough. What belongs to another state root is not touched; \
        what lives and may belong to one goes only when its id is given. Acts only on what is ours and completely \
        seen; whatever could not be read counts as alive and stays. Asks first on a terminal, unless ids are given; \
        elsewhere it needs -f. With --foreign it ends the trees of the processes that are named, which penfold did \
        not start, and nothing else.",
    examples: &[
        ("penfold gc -n", "show what would be removed"),
        ("penfold gc -f", "remove it without asking, as in a timer"),
        ("penfold gc -f --kind ended --older-than 7d", "forget sandboxes that ended a week ago"),
        ("penfold gc --foreign 4121", "end the tree of a stray that `penfold doctor --foreign` shows"),
    ],
    usage_exit: exit_codes::USAGE,
    define: GcArgs::augment_args,
    call: |global, matches| crate::gc::gc(global, &super::read(&VERB, matches)?),
};

/// What `penfold gc` was asked to do.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "flags that have nothing to do with each other")]
pub(crate) struct GcArgs {
    /// Act only on these: ids, unique beginnings of ids or names; with --foreign, pids.
    #[arg(value_name = "ID")]
    pub(crate) words: Vec<String>,
    /// Act only on these kinds of things; may be given again.
    #[arg(
        long = "kind",
        value_name = "KIND",
        value_delimiter = ',',
        value_parser = clap::builder::PossibleValuesParser::new(Thing::KINDS)
    )]
    pub(crate) kinds: Vec<String>,
    /// End the trees of the processes that are named, which penfold did not start.
    #[arg(long, requires = "words", conflicts_with_all = ["kinds", "older_than"])]
    pub(crate) foreign: bool,
    #[arg(
        short = 't',
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        default_value = "10s",
        help = "With --foreign: time between the polite signal and KILL"
    )]
    pub(crate) grace: Duration,
    #[command(flatten)]
    pub(crate) patience: Patience,
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
