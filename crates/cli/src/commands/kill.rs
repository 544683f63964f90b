//! `penfold kill`.

use clap::Args;
use penfold_control::{EndLimits, EndMethod};
use rustix::process::Signal;

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
use crate::value;

/// The verb `kill`.
pub(crate) const VERB: Verb = Verb {
    name: "kill",
    aliases: &[],
    about: "Kill sandboxes, or send a signal to their commands",
    description: "Sends SIGKILL to every member of a sandbox and waits until all members are verified gone. Several \
        sandboxes are killed in parallel. This also ends a sandbox without a supervisor or record, or with a supervisor \
        that does not answer. With another signal than KILL, penfold only sends that signal to the command. A sandbox \
        that is already gone counts as killed.",
    examples: &[
        ("penfold kill web", "kill the sandbox named web"),
        ("penfold kill -s HUP web", "send HUP to the command of web"),
        ("penfold kill --all -f", "kill all sandboxes without confirmation"),
        ("penfold kill --filter label=ci -f", "kill all sandboxes with the label ci"),
    ],
    usage_failure: FailureKind::Usage,
    define: KillArgs::augment_args,
    places: Places::All(|global, client, matches| {
        kill(global, OnServer(client), &usage::read(&VERB, matches)?)
    }),
    call: |global, matches| kill(global, Here::for_many(global)?, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold kill`.
#[derive(Args, Clone, Debug)]
pub(crate) struct KillArgs {
    #[command(flatten)]
    pub(crate) ids: Ids,
    /// The signal; any signal but KILL goes to the command only.
    #[arg(
        short = 's',
        long,
        value_name = "SIGNAL",
        value_parser = value::signal,
        allow_hyphen_values = true,
        default_value = "KILL"
    )]
    pub(crate) signal: value::Signal,
    #[command(flatten)]
    pub(crate) patience: PatienceOverride,
    /// List the sandboxes that would be killed or signalled, and change nothing.
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub(crate) force: bool,
}

/// Kills sandboxes, or sends a signal to their commands.
fn kill(global: &Global, mut sandboxes: impl Sandboxes, args: &KillArgs) -> Result<u8, Failure> {
    let signal = args.signal.sendable()?;
    sandboxes.check_signal(signal)?;
    let act = if signal == Signal::KILL { "kill" } else { "signal" };
    let selection =
        select::select(&mut sandboxes, &args.ids, Among::Living, args.force || args.dry_run, act)?;
    let mut tally = Tally::default();
    tally.missed(global, &selection.missed);
    if args.dry_run {
        tally.would_end(global, &select::living(&sandboxes, &selection.found));
        return tally.finish();
    }
    let id = |sandbox| sandboxes.shown(sandbox).id;
    if signal == Signal::KILL {
        let limits = EndLimits { patience: args.patience.patience, ..EndLimits::default() };
        let results = sandboxes.end(&selection.found, EndMethod::Kill, &limits, "killing");
        for (sandbox, result) in selection.found.iter().zip(results) {
            tally.end_result(global, id(sandbox), result);
        }
        return tally.finish();
    }
    let sent = sandboxes.signal(&selection.found, signal);
    for (sandbox, sent) in selection.found.iter().zip(sent) {
        match sent {
            Ok(()) => tally.done(id(sandbox)),
            Err(failure) => tally.failed(&failure, global.color.wanted(&std::io::stderr())),
        }
    }
    tally.finish()
}
