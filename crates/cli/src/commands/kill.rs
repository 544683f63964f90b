//! `penfold kill`.

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
    description: "Kills everything in a sandbox and waits until all of it was seen to be gone. Several are killed at the \
        same time. It also ends what has lost its supervisor or its record, and what has a supervisor that does not \
        answer. With another signal than KILL nothing is ended: the signal is sent to the command. What is gone already \
        counts as killed.",
    examples: &[
        ("penfold kill web", "kill the sandbox named web"),
        ("penfold kill -s HUP web", "send HUP to its command"),
        ("penfold kill --all -f", "kill all sandboxes without being asked"),
        ("penfold kill --filter label=ci -f", "kill those with this label without being asked"),
    ],
    usage_failure: FailureKind::Usage,
    define: KillArgs::augment_args,
    call: |global, matches| kill(global, &usage::read(&VERB, matches)?),
};

/// What `penfold kill` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct KillArgs {
    #[command(flatten)]
    pub(crate) ids: Ids,
    /// The signal; any but KILL is sent to the command and ends nothing else.
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
    /// Do not ask.
    #[arg(short, long)]
    pub(crate) force: bool,
}

/// Ends sandboxes at once, or sends a signal to their commands.
pub(crate) fn kill(global: &Global, args: &KillArgs) -> Result<u8, Failure> {
    let signal = args.signal.sendable()?;
    let act = if signal == Signal::KILL { "kill" } else { "signal" };
    let (resolver, selection) = select::select(global, &args.ids, Among::Living, args.force, act)?;
    let mut tally = Tally::default();
    tally.missed(global, &selection.missed);
    if signal == Signal::KILL {
        let mut slow = tally::progress(global, "killing");
        let limits = Limits { patience: args.patience.patience, ..Limits::default() };
        let stop_results =
            penfold_control::end(&resolver, &selection.found, EndMethod::Kill, &limits, &mut slow);
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

/// What a supervisor says that was to send a signal to its command. One that is over takes none, which is as well.
fn is_sent(
    resolver: &Resolver,
    known: &SandboxRef,
    answer: Option<Result<Answer, ClientError>>,
) -> Result<(), Failure> {
    let failed = |reason: String| {
        Failure::new(FailureKind::Other, format!("cannot signal the command of sandbox {}", known.id))
            .because(reason)
    };
    match answer {
        Some(Ok(Answer::Done)) => Ok(()),
        _ if !is_living(&resolver.again(), known) => Ok(()),
        Some(Ok(Answer::Refused(reason))) => Err(failed(reason)),
        Some(Ok(_)) => Err(failed("its supervisor answers something else".to_owned())),
        Some(Err(ClientError::NoSocket { .. })) => Err(failed(
            "it is no detached sandbox, and only `penfold run` itself passes signals on".to_owned(),
        )),
        Some(Err(error)) => Err(failed(error.to_string())),
        None => {
            Err(failed("nobody looks after it".to_owned())
                .hint(format!("`penfold kill {}` ends it", known.id)))
        }
    }
}
