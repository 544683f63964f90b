//! `penfold report`: its flags.

use clap::Args;

use super::Verb;
use crate::exit_codes;

/// The verb `report`.
pub(crate) const VERB: Verb = Verb {
    name: "report",
    aliases: &[],
    about: "Show what the end of sandboxes found and did",
    description: "Shows the reports of sandboxes that have ended and whose records were kept: why they ended, what \
        was left behind and ended, the steps of the teardown, and whether it was seen that nothing is left. Without an \
        id it lists all reports, the last first.",
    examples: &[
        ("penfold report", "how did the last ones end?"),
        ("penfold report web", "one of them, step by step"),
        ("penfold report --last --json", "the last one for a script"),
        ("penfold report --failed", "those whose command failed or whose end was not verified"),
    ],
    usage_exit: exit_codes::USAGE,
    define: ReportArgs::augment_args,
    call: |global, matches| crate::report::report(global, &super::read(&VERB, matches)?),
};

/// What `penfold report` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReportArgs {
    /// Ids, unique beginnings of ids, or names; `-` reads them from standard input.
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<String>,
    /// Only that of the sandbox that ended last.
    #[arg(long, conflicts_with = "ids")]
    pub(crate) last: bool,
    /// Only those whose command did not exit with 0, or whose end was not verified.
    #[arg(long)]
    pub(crate) failed: bool,
    /// Print the reports as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
