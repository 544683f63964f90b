//! `penfold rm`.

use clap::Args;
use penfold_control::{EndLimits, EndMethod, ForgetError};

use crate::args::ids::Ids;
use crate::args::patience::PatienceOverride;
use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::find::Among;
use crate::sandboxes::here::Here;
use crate::sandboxes::on_server::OnServer;
use crate::sandboxes::tally::{EndResult, Tally};
use crate::sandboxes::{Sandboxes, select};

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
    places: Places::All(|global, client, matches| {
        rm(global, OnServer(client), &usage::read(&VERB, matches)?)
    }),
    call: |global, matches| rm(global, Here::for_many(global)?, &usage::read(&VERB, matches)?),
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
fn rm(global: &Global, mut sandboxes: impl Sandboxes, args: &RmArgs) -> Result<u8, Failure> {
    let selection =
        select::select(&mut sandboxes, &args.ids, Among::Every, args.force || args.dry_run, "remove")?;
    let limits = EndLimits { patience: args.patience.patience, verb: Some("rm"), ..EndLimits::default() };
    let mut tally = Tally::default();
    tally.missed(global, &selection.missed);
    if args.dry_run {
        would_remove(global, &sandboxes, &selection.found, args.force, &mut tally);
        return tally.finish();
    }
    let id = |sandbox| sandboxes.shown(sandbox).id;
    if !args.force {
        for sandbox in &selection.found {
            tally.end_result(global, id(sandbox), sandboxes.forget(sandbox, &limits));
        }
        return tally.finish();
    }
    let killed = sandboxes.end(&selection.found, EndMethod::Kill, &limits, "killing");
    for (sandbox, killed) in selection.found.iter().zip(killed) {
        let result = match killed {
            EndResult::Gone => sandboxes.remove_record(sandbox, &limits),
            left => left,
        };
        tally.end_result(global, id(sandbox), result);
    }
    tally.finish()
}

/// Lists the sandboxes whose records would be removed. One that lives is refused, unless `force`.
fn would_remove<S: Sandboxes>(
    global: &Global,
    sandboxes: &S,
    found: &[S::Sandbox],
    force: bool,
    tally: &mut Tally,
) {
    let mut doomed = Vec::new();
    for sandbox in found {
        let shown = sandboxes.shown(sandbox);
        let status = sandboxes.view(sandbox).map(|seen| seen.status);
        match status.filter(|status| status.is_living() && !force) {
            Some(status) => {
                let error = ForgetError::Living { id: shown.id.to_owned(), status };
                tally.failed(&error.into(), global.color.wanted(&std::io::stderr()));
            }
            None => doomed.push(shown),
        }
    }
    tally.would_end(global, &doomed);
}
