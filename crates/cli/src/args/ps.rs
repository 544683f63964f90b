//! `penfold ps`: its flags.

use clap::Args;

use super::Verb;
use super::ids::Filters;
use crate::exit_codes;
use crate::text::template::{self, Format};

/// The verb `ps`.
pub(crate) const VERB: Verb = Verb {
    name: "ps",
    aliases: &["ls"],
    about: "List sandboxes",
    description: "Lists the sandboxes in which something may be alive; with -a those that have ended, too. A sandbox \
        that nobody looks after is `orphaned` while anything of it is alive, and `lost` when nothing of it was found \
        and nobody saw it end. One that was stopped is `stopped` where its command did not have to be killed, and found by \
        `status=killed`, too. -q prints ids only.",
    examples: &[
        ("penfold ps", "what runs here?"),
        ("penfold ps -a --filter label=job=17", "all of one job, those that have ended too"),
        ("penfold ps --format {{.ID}}:{{.Status}}", "two fields, a line each"),
        ("penfold ps -q --filter status=orphaned", "ids for another command"),
    ],
    usage_exit: exit_codes::USAGE,
    define: PsArgs::augment_args,
    call: |global, matches| crate::ps::ps(global, &super::read(&VERB, matches)?),
};

/// What `penfold ps` was asked to do.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "flags are")]
pub(crate) struct PsArgs {
    /// List those that have ended, too.
    #[arg(short, long)]
    pub(crate) all: bool,
    /// List only the one that was started last, whether it has ended or not.
    #[arg(short, long)]
    pub(crate) latest: bool,
    #[command(flatten)]
    pub(crate) filters: Filters,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print each as this says: `json`, or text with fields such as `{{.ID}}`; `table` before it adds headings.
    #[arg(long, value_name = "FORMAT", value_parser = template::format, conflicts_with = "json")]
    pub(crate) format: Option<Format>,
    /// Cut nothing short.
    #[arg(long)]
    pub(crate) no_trunc: bool,
    /// List again each second until interrupted.
    #[arg(long)]
    pub(crate) watch: bool,
}
