//! `penfold rm`: its flags.

use clap::Args;

use super::Verb;
use super::ids::Ids;
use super::patience::PatienceOverride;
use crate::exit_codes;

/// The verb `rm`.
pub(crate) const VERB: Verb = Verb {
    name: "rm",
    aliases: &[],
    about: "Forget sandboxes that are over",
    description: "Removes what is kept of a sandbox that is over: its record, its log, its report. One that is not over \
        is refused, unless it is to be killed first. Nothing is removed before the end was seen. A name means all \
        sandboxes that have ended and bear it.",
    examples: &[
        ("penfold rm web", "forget the sandboxes named web that have ended"),
        ("penfold rm -f 3f9", "kill it first if it still runs"),
        ("penfold rm --filter status=exited -f", "forget all whose commands ended by themselves"),
    ],
    usage_exit: exit_codes::USAGE,
    define: RmArgs::augment_args,
    call: |global, matches| crate::rm::rm(global, &super::read(&VERB, matches)?),
};

/// What `penfold rm` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct RmArgs {
    #[command(flatten)]
    pub(crate) ids: Ids,
    #[command(flatten)]
    pub(crate) patience: PatienceOverride,
    /// Kill what is not over, and do not ask.
    #[arg(short, long)]
    pub(crate) force: bool,
}
