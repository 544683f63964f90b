//! `penfold kill`: its flags.

use clap::Args;

use super::Verb;
use super::ids::Ids;
use super::patience::PatienceOverride;
use crate::exit_codes;
use crate::value::{self, Signal};

/// The verb `kill`.
pub(crate) const VERB: Verb = Verb {
    name: "kill",
    aliases: &[],
    about: "Kill sandboxes, or send a signal to their commands",
    description: "Kills everything in a sandbox and waits until all of it was seen to be gone. Several are killed at the \
        same time. It also ends what has lost its supervisor or its record, and what has a supervisor that does not \
        answer. With another signal than KILL nothing is ended: the signal is sent to the command. What is gone already \
        counts as killed.",
    examples: &[
        ("penfold kill web", "kill the sandbox named web"),
        ("penfold kill -s HUP web", "send HUP to its command"),
        ("penfold kill --all -f", "kill all sandboxes without being asked"),
        ("penfold kill --filter label=ci -f", "kill those with this label without being asked"),
    ],
    usage_exit: exit_codes::USAGE,
    define: KillArgs::augment_args,
    call: |global, matches| crate::kill::kill(global, &super::read(&VERB, matches)?),
};

/// What `penfold kill` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct KillArgs {
    #[command(flatten)]
    pub(crate) ids: Ids,
    /// The signal; any but KILL is sent to the command and ends nothing else.
    #[arg(
        short = 's',
        long,
        value_name = "SIGNAL",
        value_parser = value::signal,
        allow_hyphen_values = true,
        default_value = "KILL"
    )]
    pub(crate) signal: Signal,
    #[command(flatten)]
    pub(crate) patience: PatienceOverride,
    /// Do not ask.
    #[arg(short, long)]
    pub(crate) force: bool,
}
