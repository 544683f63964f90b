//! `penfold status`: its flags.

use clap::Args;

use super::Verb;
use crate::exit_codes;

/// The verb `status`.
pub(crate) const VERB: Verb = Verb {
    name: "status",
    aliases: &[],
    about: "Explain how sandboxes are",
    description: "Explains to people in which state a sandbox is, why and since when; shows its processes and the \
        last lines of its log.",
    examples: &[
        ("penfold status web", "how is it, and what did it say last?"),
        ("penfold status web -n 50", "with more of its log"),
    ],
    usage_exit: exit_codes::USAGE,
    define: StatusArgs::augment_args,
    call: |global, matches| crate::status::status(global, &super::read(&VERB, matches)?),
};

/// What `penfold status` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct StatusArgs {
    /// Ids, unique beginnings of ids, or names; `-` reads them from standard input.
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
    /// How many lines of the log to show.
    #[arg(short = 'n', long, value_name = "N", value_parser = crate::value::number, default_value_t = 10)]
    pub(crate) lines: u64,
    /// Print the state as JSON, as `penfold ps --json` does.
    #[arg(long)]
    pub(crate) json: bool,
}
