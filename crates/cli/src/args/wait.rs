//! `penfold wait`: its flags.

use std::time::Duration;

use clap::Args;

use super::Verb;
use super::ids::Ids;
use crate::exit_codes;
use crate::value;

/// The verb `wait`.
pub(crate) const VERB: Verb = Verb {
    name: "wait",
    aliases: &[],
    about: "Wait until sandboxes are over and give their exit codes",
    description: "Waits until sandboxes are over, prints the exit code of each command on a line of its own, in the order \
        of the ids, and exits with it; with the first that is not 0 if there are several. The codes are those of \
        `penfold run`. All who wait get the same answer. A sandbox that nobody \
        looks after is waited for until nothing of it is left. When nobody saw how a command ended, `unknown` is printed \
        and the exit code is 120: none is invented. The same of a sandbox that ran in the foreground: its code went to who \
        called `penfold run`. When an ID means no sandbox or several, the exit code is 125.",
    examples: &[
        ("penfold wait web", "wait for the sandbox named web; `$?` is the code of its command"),
        ("penfold wait --timeout 1m web", "wait no longer than a minute; 124 when it is not over by then"),
        ("penfold wait --any 3f9 c07", "wait for the first of two, and print which it was with its code"),
    ],
    usage_exit: exit_codes::NOT_STARTED,
    define: WaitArgs::augment_args,
    call: |global, matches| crate::wait::wait(global, &super::read(&VERB, matches)?),
};

/// What `penfold wait` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    pub(crate) ids: Ids,
    /// Wait for one of them only, and print `ID CODE`.
    #[arg(long)]
    pub(crate) any: bool,
    /// Wait no longer than this.
    #[arg(long, value_name = "DURATION", value_parser = value::duration, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
}
