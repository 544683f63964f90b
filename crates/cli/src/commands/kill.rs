//! `penfold kill`.

use std::error::Error;

use clap::Args;
use penfold_control::{ANSWER, Client, ClientError, EndMethod, Limits, Resolver, SandboxRef, view};
use penfold_state::Files;
use penfold_state::wire::{Answer, Request};
use rustix::process::Signal;

use crate::args::ids::Ids;
use crate::args::patience::PatienceOverride;
use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::find::Among;
use crate::sandboxes::select;
use crate::sandboxes::tally::{self, Tally};
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
    call: |global, matches| kill(global, &usage::read(&VERB, matches)?),
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
pub(crate) fn kill(global: &Global, args: &KillArgs) -> Result<u8, Failure> {
    let signal = args.signal.sendable()?;
    let act = if signal == Signal::KILL { "kill" } else { "signal" };
    let (resolver, selection) =
        select::select(global, &args.ids, Among::Living, args.force || args.dry_run, act)?;
    let mut tally = Tally::default();
    tally.missed(global, &selection.missed);
    if args.dry_run {
        tally.would_end(global, &select::living(&resolver, &selection));
        return tally.finish();
    }
    if signal == Signal::KILL {
        let mut slow = tally::progress(global, "killing", &selection.found);
        let limits = Limits { patience: args.patience.patience, ..Limits::default() };
        let stop_results =
            penfold_control::end(&resolver, &selection.found, EndMethod::Kill, &limits, &mut slow);
        drop(slow);
        for (known, stop_result) in selection.found.iter().zip(stop_results) {
            tally.stop_result(&known.id, stop_result);
        }
    } else {
        let records: Vec<Option<&Files>> = selection
            .found
            .iter()
            .map(|known| known.record.as_ref().filter(|_| is_living(&resolver, known)))
            .collect();
        let request = Request::Forward(signal.as_raw());
        let answers = penfold_control::at_once(&records, |files| {
            files.map(|files| Client::connect(files, ANSWER)?.request(&request, ANSWER))
        });
        for (known, answer) in selection.found.iter().zip(answers) {
            match is_sent(&resolver, known, answer) {
                Ok(()) => tally.done(&known.id),
                Err(failure) => tally.failed(&failure, global.color.wanted(&std::io::stderr())),
            }
        }
    }
    tally.finish()
}

fn is_living(resolver: &Resolver, known: &SandboxRef) -> bool {
    view::view(resolver, known).is_some_and(|seen| seen.status.is_living())
}

/// Judges the answer of a supervisor to a signal request. If the sandbox has ended meanwhile, that is success.
fn is_sent(
    resolver: &Resolver,
    known: &SandboxRef,
    answer: Option<Result<Answer, ClientError>>,
) -> Result<(), Failure> {
    let failed = |reason: Box<dyn Error>| {
        Failure::new(FailureKind::Other, format!("cannot signal the command of sandbox {}", known.id))
            .because(reason)
    };
    match answer {
        Some(Ok(Answer::Done)) => Ok(()),
        _ if !is_living(&resolver.again(), known) => Ok(()),
        Some(Ok(Answer::Refused(reason))) => Err(failed(reason.into())),
        Some(Ok(_)) => Err(failed("the supervisor sent an unexpected answer".into())),
        Some(Err(ClientError::NoSocket { .. })) => {
            Err(failed("it is a foreground sandbox: send the signal to its `penfold run`".into()))
        }
        Some(Err(error)) => Err(failed(error.into())),
        None => {
            Err(failed("it has no supervisor".into()).hint(format!("`penfold kill {}` ends it", known.id)))
        }
    }
}
