//! `penfold pause` and `penfold unpause`.

use std::io;

use clap::Args;
use penfold_control::{PauseError, Resolver, SandboxRef};

use crate::args::ids::Ids;
use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::find::Among;
use crate::sandboxes::select;
use crate::sandboxes::tally::Tally;

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
    call: |global, matches| {
        let args = usage::read(&VERB, matches)?;
        each(global, &args, "pause", penfold_control::pause)
    },
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
    call: |global, matches| {
        let args = usage::read(&UNPAUSE, matches)?;
        each(global, &args, "unpause", penfold_control::unpause)
    },
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
    args: &PauseArgs,
    act: &str,
    change: impl Fn(&Resolver, &SandboxRef) -> Result<(), PauseError>,
) -> Result<u8, Failure> {
    let (resolver, selection) = select::select(global, &args.ids, Among::Living, args.force, act)?;
    let mut tally = Tally::default();
    tally.missed(global, &selection.missed);
    for known in &selection.found {
        match change(&resolver, known) {
            Ok(()) => tally.done(&known.id),
            Err(error) => {
                let failure = failure(act, &known.id, error);
                tally.failed(&failure, global.color.wanted(&io::stderr()));
            }
        }
    }
    tally.finish()
}

fn failure(act: &str, id: &str, error: PauseError) -> Failure {
    let kind = match &error {
        PauseError::Cgroup(error) => error_kind(error),
        _ => FailureKind::Other,
    };
    let hint = match &error {
        PauseError::NoLeaf => Some(
            "`penfold kill -s STOP ID` stops its command only; `penfold doctor` tells why there is no cgroup",
        ),
        PauseError::Inside => Some("call it from outside of the sandbox"),
        _ => None,
    };
    let failure = Failure::new(kind, format!("cannot {act} sandbox {id}")).because(error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// The kind of an error of the kernel.
fn error_kind(error: &(dyn std::error::Error + 'static)) -> FailureKind {
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    source.map_or(FailureKind::Other, FailureKind::from)
}
