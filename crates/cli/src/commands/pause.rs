//! `penfold pause` and `penfold unpause`.

use clap::Args;

use crate::args::ids::Ids;
use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::find::Among;
use crate::sandboxes::here::Here;
use crate::sandboxes::on_server::OnServer;
use crate::sandboxes::tally::Tally;
use crate::sandboxes::{Sandboxes, select};

/// The verb `pause`.
pub(crate) const VERB: Verb = Verb {
    name: "pause",
    aliases: &[],
    about: "Freeze all processes of sandboxes",
    description: "Freezes every member of a sandbox and returns once none of them runs. Members keep their memory, descriptors \
        and connections, and notice only the time that has passed. `penfold unpause` lets them go on. Time limits and leases hold for a paused \
        sandbox, too; stop and kill end it at once. A sandbox without a cgroup of its own cannot be paused.",
    examples: &[
        ("penfold pause build", "freeze the sandbox build"),
        ("penfold pause --filter label=batch -f", "freeze all sandboxes with a label without confirmation"),
    ],
    usage_failure: FailureKind::Usage,
    define: PauseArgs::augment_args,
    places: Places::All(|global, client, matches| {
        each(global, OnServer(client), &usage::read(&VERB, matches)?, true)
    }),
    call: |global, matches| each(global, Here::for_many(global)?, &usage::read(&VERB, matches)?, true),
};

/// The verb `unpause`.
pub(crate) const UNPAUSE: Verb = Verb {
    name: "unpause",
    aliases: &[],
    about: "Let the processes of paused sandboxes go on",
    description: "Thaws every member of a sandbox that `penfold pause` has frozen. A sandbox that runs is left as it is.",
    examples: &[
        ("penfold unpause build", "let the sandbox build go on"),
        ("penfold unpause --filter status=paused -f", "let all paused sandboxes go on without confirmation"),
    ],
    usage_failure: FailureKind::Usage,
    define: PauseArgs::augment_args,
    places: Places::All(|global, client, matches| {
        each(global, OnServer(client), &usage::read(&UNPAUSE, matches)?, false)
    }),
    call: |global, matches| each(global, Here::for_many(global)?, &usage::read(&UNPAUSE, matches)?, false),
};

/// The arguments of both verbs.
#[derive(Args, Clone, Debug)]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    pub(crate) ids: Ids,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub(crate) force: bool,
}

/// Pauses or continues sandboxes, one after the other.
fn each(
    global: &Global,
    mut sandboxes: impl Sandboxes,
    args: &PauseArgs,
    paused: bool,
) -> Result<u8, Failure> {
    let act = if paused { VERB.name } else { UNPAUSE.name };
    let selection = select::select(&mut sandboxes, &args.ids, Among::Living, args.force, act)?;
    let mut tally = Tally::default();
    tally.missed(global, &selection.missed);
    for sandbox in &selection.found {
        match sandboxes.set_paused(sandbox, paused) {
            Ok(()) => tally.done(sandboxes.shown(sandbox).id),
            Err(failure) => tally.failed(&failure, global.color.wanted(&std::io::stderr())),
        }
    }
    tally.finish()
}
