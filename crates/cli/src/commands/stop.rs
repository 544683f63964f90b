//! `penfold stop`.

use std::time::Duration;

use clap::Args;
use penfold_control::{EndLimits, EndMethod};

use crate::args::ids::Ids;
use crate::args::patience::PatienceOverride;
use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::find::Among;
use crate::sandboxes::here::Here;
use crate::sandboxes::on_server::OnServer;
use crate::sandboxes::tally::Tally;
use crate::sandboxes::{Sandboxes, select};
use crate::value::{self, Signal};

/// The verb `stop`.
pub(crate) const VERB: Verb = Verb {
    name: "stop",
    aliases: &[],
    about: "Stop sandboxes: politely at first, then by force",
    description: "Sends the polite signal to every member of a sandbox, and SIGKILL to the remaining members after the \
        grace. Then waits until all members are verified gone. Several sandboxes are stopped in parallel. If the supervisor is \
        dead or hung, penfold ends its sandbox directly. A sandbox that is already gone counts as stopped.",
    examples: &[
        ("penfold stop web", "stop the sandbox web"),
        ("penfold stop -t 2s 3f9 c07", "stop two sandboxes and kill them after two seconds"),
        ("penfold stop -n --all", "list the sandboxes that would be stopped, and change nothing"),
        ("penfold stop --filter label=job=1729 -f", "stop all sandboxes of a job without confirmation"),
    ],
    usage_failure: FailureKind::Usage,
    define: StopArgs::augment_args,
    places: Places::All(|global, client, matches| {
        stop(global, OnServer(client), &usage::read(&VERB, matches)?)
    }),
    call: |global, matches| stop(global, Here::for_many(global)?, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold stop`.
#[derive(Args, Clone, Debug)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    pub(crate) ids: Ids,
    /// Time between the polite signal and KILL [default: the sandbox's value].
    #[arg(
        short = 't',
        long,
        visible_aliases = ["timeout", "time"],
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true
    )]
    pub(crate) grace: Option<Duration>,
    /// The polite signal [default: the sandbox's value].
    #[arg(short = 's', long, value_name = "SIGNAL", value_parser = value::signal, allow_hyphen_values = true)]
    pub(crate) signal: Option<Signal>,
    #[command(flatten)]
    pub(crate) patience: PatienceOverride,
    /// List the sandboxes that would be stopped, and change nothing.
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub(crate) force: bool,
}

/// Stops sandboxes.
fn stop(global: &Global, mut sandboxes: impl Sandboxes, args: &StopArgs) -> Result<u8, Failure> {
    let signal = args.signal.map(Signal::sendable).transpose()?;
    let selection =
        select::select(&mut sandboxes, &args.ids, Among::Living, args.force || args.dry_run, "stop")?;
    let mut tally = Tally::default();
    tally.missed(global, &selection.missed);
    if args.dry_run {
        tally.would_end(global, &select::living(&sandboxes, &selection.found));
        return tally.finish();
    }
    let how = EndMethod::Stop { signal, grace: args.grace };
    let limits = EndLimits { patience: args.patience.patience, ..EndLimits::default() };
    let results = sandboxes.end(&selection.found, how, &limits, "stopping");
    for (sandbox, result) in selection.found.iter().zip(results) {
        tally.end_result(global, sandboxes.shown(sandbox).id, result);
    }
    tally.finish()
}
