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
    about: "Remove the records of ended sandboxes",
    description: "Removes the record of an ended sandbox, with its log, exit code and report. A sandbox that has not ended \
        is refused; -f kills it first. penfold removes a record only after the verified end of its sandbox. A name \
        selects all ended sandboxes with this name.",
    examples: &[
        ("penfold rm web", "remove the records of ended sandboxes with the name web"),
        ("penfold rm -f 3f9", "kill the sandbox first if it still runs"),
        ("penfold rm -n --all", "list the records that would be removed, and change nothing"),
        ("penfold rm --filter status=exited -f", "remove all sandboxes whose commands exited by themselves"),
    ],
    usage_failure: FailureKind::Usage,
    define: RmArgs::augment_args,
    call: |global, matches| rm(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold rm`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RmArgs {
    #[command(flatten)]
    pub(crate) ids: Ids,
    #[command(flatten)]
    pub(crate) patience: PatienceOverride,
    /// List the sandboxes whose records would be removed, and change nothing.
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Kill sandboxes that have not ended, and do not ask for confirmation.
    #[arg(short, long)]
    pub(crate) force: bool,
}

/// Removes the records of ended sandboxes; with `--force` kills the sandboxes first.
pub(crate) fn rm(global: &Global, args: &RmArgs) -> Result<u8, Failure> {
    let (resolver, selection) =
        select::select(global, &args.ids, Among::Every, args.force || args.dry_run, "remove")?;
    let coloured = global.color.wanted(&std::io::stderr());
    let limits = Limits { patience: args.patience.patience, verb: Some("rm"), ..Limits::default() };
    let mut tally = Tally::default();
    tally.missed(global, &selection.missed);
    if args.dry_run {
        let (doomed, living) = select::ended(&resolver, &selection, args.force);
        for error in living {
            tally.failed(&error.into(), coloured);
        }
        tally.would_end(global, &doomed);
        return tally.finish();
    }
    if !args.force {
        for known in &selection.found {
            match penfold_control::forget(&resolver, known, &limits) {
                Ok(()) => tally.done(&known.id),
                Err(error) => tally.failed(&error.into(), coloured),
            }
        }
        return tally.finish();
    }
    let mut slow = tally::progress(global, "killing", &selection.found);
    let stop_results = penfold_control::end(&resolver, &selection.found, EndMethod::Kill, &limits, &mut slow);
    drop(slow);
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
