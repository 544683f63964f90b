//! `penfold inspect`: its flags.

use clap::Args;

use super::Verb;
use crate::exit_codes;
use crate::text::template::{self, Format};

/// The verb `inspect`.
pub(crate) const VERB: Verb = Verb {
    name: "inspect",
    aliases: &[],
    about: "Print everything about sandboxes, as JSON",
    description: "Prints all that is known of sandboxes as a JSON array: what `penfold ps --json` prints, and below \
        `files` what their records hold: what was meant to be, what the supervisor says, how the command ended, the \
        report of the teardown with its steps. A file that is damaged is null and named in `damage`.",
    examples: &[
        ("penfold inspect web", "all about one sandbox"),
        ("penfold inspect 3f9 --format {{.Status}}", "one field of it"),
    ],
    usage_exit: exit_codes::USAGE,
    define: InspectArgs::augment_args,
    call: |global, matches| crate::inspect::inspect(global, &super::read(&VERB, matches)?),
};

/// What `penfold inspect` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct InspectArgs {
    /// Ids, unique beginnings of ids, or names; `-` reads them from standard input.
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
    /// Print JSON, as is done anyway.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print a line for each as this says: text with fields such as `{{.ID}}`.
    #[arg(long, value_name = "FORMAT", value_parser = template::format, conflicts_with = "json")]
    pub(crate) format: Option<Format>,
}
