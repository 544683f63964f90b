//! `penfold extend`: its flags.

use std::time::Duration;

use clap::Args;

use super::Verb;
use crate::exit_codes;
use crate::value;

/// The verb `extend`.
pub(crate) const VERB: Verb = Verb {
    name: "extend",
    aliases: &[],
    about: "Renew the lease of a detached sandbox",
    description: "Sets the time at which a detached sandbox is stopped to so much from now, whether it was started with \
        `--ttl` or not. With 0 it has no such time any more.",
    examples: &[
        ("penfold extend web 30m", "stop web in half an hour from now, not earlier"),
        ("penfold extend web 0", "let web run for as long as it wants"),
    ],
    usage_exit: exit_codes::USAGE,
    define: ExtendArgs::augment_args,
    call: |global, matches| crate::extend::extend(global, &super::read(&VERB, matches)?),
};

/// What `penfold extend` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExtendArgs {
    /// Id, unique beginning of an id, or name.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// How long it may go on from now; 0 for as long as it wants.
    #[arg(value_name = "DURATION", value_parser = value::duration, allow_hyphen_values = true)]
    pub(crate) lease: Duration,
}
