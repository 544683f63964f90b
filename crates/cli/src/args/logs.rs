//! `penfold logs`: its flags.

use clap::Args;

use super::Verb;
use crate::exit_codes;
use crate::text::time::{Since, since};

/// The verb `logs`.
pub(crate) const VERB: Verb = Verb {
    name: "logs",
    aliases: &[],
    about: "Show what a detached sandbox has written",
    description: "Shows what the command of a detached sandbox has written, byte for byte: its standard output on \
        standard output, its standard error on standard error. The log is kept after the end, until `penfold rm`. It \
        is bounded: when it is full the oldest goes first.",
    examples: &[
        ("penfold logs web", "show all that is kept"),
        ("penfold logs -f -n 20 web", "show the last 20 lines and what follows, until the end"),
        ("penfold logs --since 10m -t 3f9a", "show the last ten minutes, each line with its time"),
        ("penfold logs --json -f web", "one JSON object a line, for programs"),
    ],
    usage_exit: exit_codes::USAGE,
    define: LogsArgs::augment_args,
    call: |global, matches| crate::logs::logs(global, &super::read(&VERB, matches)?),
};

/// What `penfold logs` was asked to do.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[derive(Args, Clone, Debug)]
pub(crate) struct LogsArgs {
    /// Id, unique beginning of an id, or name.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Show also what is written from now on, until the sandbox has ended.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Show only the last lines.
    #[arg(short = 'n', long = "lines", value_name = "N", value_parser = crate::value::number, conflicts_with = "since")]
    pub(crate) lines: Option<u64>,
    /// Show only what is not older: a duration, or a time as in `2026-11-21T10:35:00Z`.
    #[arg(long, value_name = "TIME", value_parser = since, allow_hyphen_values = true)]
    pub(crate) since: Option<Since>,
    /// Put the time (UTC) before each line.
    #[arg(short, long)]
    pub(crate) timestamps: bool,
    /// Show only what was written to standard error, on standard output.
    #[arg(long)]
    pub(crate) stderr: bool,
    /// Print one JSON object a line.
    #[arg(long, conflicts_with = "timestamps")]
    pub(crate) json: bool,
}
