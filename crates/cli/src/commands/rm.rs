//! `penfold rm`.

use clap::Args;
use penfold_control::{EndMethod, Limits, StopResult};

use crate::args::ids::Ids;
use crate::args::patience::PatienceOverride;
use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::find::Among;
use crate::sandboxes::select;
use crate::sandboxes::tally::{self, Tally};

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
    usage_failure: FailureKind::Usage,
    define: RmArgs::augment_args,
    call: |global, matches| rm(global, &usage::read(&VERB, matches)?),
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

/// Forgets sandboxes that are over; ends them first if that is wanted.
pub(crate) fn rm(global: &Global, args: &RmArgs) -> Result<u8, Failure> {
    let (resolver, selection) = select::select(global, &args.ids, Among::Every, args.force, "remove")?;
    let coloured = global.color.wanted(&std::io::stderr());
    let limits = Limits { patience: args.patience.patience, ..Limits::default() };
    let mut tally = Tally::default();
    tally.missed(global, &selection.missed);
    if !args.force {
        for known in &selection.found {
            match penfold_control::forget(&resolver, known, &limits) {
                Ok(()) => tally.done(&known.id),
                Err(error) => tally.failed(&error.into(), coloured),
            }
        }
        return tally.finish();
    }
    let mut slow = tally::progress(global, "killing");
    let stop_results = penfold_control::end(&resolver, &selection.found, EndMethod::Kill, &limits, &mut slow);
    for (known, stop_result) in selection.found.iter().zip(stop_results) {
        if !matches!(stop_result, StopResult::Gone) {
            tally.stop_result(&known.id, stop_result);
            continue;
        }
        match penfold_control::put_away(&resolver, known, &limits) {
            Ok(()) => tally.done(&known.id),
            Err(error) => tally.failed(&error.into(), coloured),
        }
    }
    tally.finish()
}
