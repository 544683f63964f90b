//! `penfold wait`.

use std::io::ErrorKind;
use std::time::Duration;

use clap::Args;
use penfold_control::{End, SandboxRef};
use penfold_state::Files;
use penfold_teardown::Cause;

use crate::args::ids::Ids;
use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::conclude::command_code;
use crate::sandboxes::find::Among;
use crate::sandboxes::select;
use crate::sandboxes::tally::Tally;
use crate::{exit_codes, output, value};

/// The verb `wait`.
pub(crate) const VERB: Verb = Verb {
    name: "wait",
    aliases: &[],
    about: "Wait until sandboxes are over and give their exit codes",
    description: "Waits until sandboxes are over, prints the exit code of each command on a line of its own, in the order \
        of the ids, and exits with it; with the first that is not 0 if there are several. The codes are those of \
        `penfold run`. All who wait get the same answer. A sandbox that nobody \
        looks after is waited for until nothing of it is left. When nobody saw how a command ended, `unknown` is printed \
        and the exit code is 120: none is invented. The same of a sandbox that ran in the foreground: its code went to who \
        called `penfold run`. When an ID means no sandbox or several, the exit code is 125.",
    examples: &[
        ("penfold wait web", "wait for the sandbox named web; `$?` is the code of its command"),
        ("penfold wait --timeout 1m web", "wait no longer than a minute; 124 when it is not over by then"),
        ("penfold wait --any 3f9 c07", "wait for the first of two, and print which it was with its code"),
    ],
    usage_failure: FailureKind::NotStarted,
    define: WaitArgs::augment_args,
    call: |global, matches| wait(global, &usage::read(&VERB, matches)?),
};

/// What `penfold wait` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    pub(crate) ids: Ids,
    /// Wait for one of them only, and print `ID CODE`.
    #[arg(long)]
    pub(crate) any: bool,
    /// Wait no longer than this.
    #[arg(long, value_name = "DURATION", value_parser = value::duration, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
}

/// Waits until sandboxes are over and gives the exit codes of their commands.
pub(crate) fn wait(global: &Global, args: &WaitArgs) -> Result<u8, Failure> {
    let (resolver, selection) =
        select::select(global, &args.ids, Among::Living, true, "wait for").map_err(Failure::not_started)?;
    let mut tally = Tally::default();
    let missed: Vec<Failure> = selection.missed.into_iter().map(Failure::not_started).collect();
    tally.missed(global, &missed);
    let missed = missed.first().map(Failure::exit_code);
    let mut slow = |_| ();
    let ends = penfold_control::wait(&resolver, &selection.found, args.any, args.timeout, &mut slow);
    let (mut left, mut codes) = (Vec::new(), Vec::from_iter(missed));
    for (known, end) in selection.found.iter().zip(&ends) {
        let Some(end) = end else {
            left.push(known.id.as_str());
            continue;
        };
        if *end == End::Removed && !ended_in_front(known) {
            let sentence = format!("no sandbox is called `{}` any more: its record was removed", known.id);
            tally.missed(global, &[Failure::new(FailureKind::NotStarted, sentence)]);
            codes.push(exit_codes::NOT_STARTED);
            continue;
        }
        let code = code(known, end);
        let text = code.map_or_else(|| "unknown".to_owned(), |code| code.to_string());
        tally.done(&if args.any { format!("{} {text}", known.id) } else { text });
        codes.push(code.unwrap_or(exit_codes::UNVERIFIED));
    }
    let enough = args.any && left.len() < ends.len();
    if !left.is_empty() && !enough {
        let sentence = format!("not over in time: {}", left.join(", "));
        codes.push(Failure::new(FailureKind::TimedOut, sentence).report(false));
    }
    tally.finish()?;
    // Whatever its number is, a command's code is no worse than another's: the first one counts.
    Ok(codes.into_iter().find(|&code| code != exit_codes::SUCCESS).unwrap_or(exit_codes::SUCCESS))
}

/// The exit code by the table of `penfold run`; nothing, and a sentence, when it is not known.
fn code(known: &SandboxRef, end: &End) -> Option<u8> {
    let id = &known.id;
    let unknown = |why: &str| {
        output::talk(&format!("penfold: {id}: {why}\n"));
        None
    };
    match end {
        End::Unverified => {
            // What would not end may be the command.
            let over = known.record.as_ref().is_some_and(|files| matches!(files.exited(), Ok(Some(_))));
            let over = if over { "the command is over but " } else { "" };
            output::talk(&format!(
                "penfold: {id}: {over}something in the sandbox would not end; `penfold status {id}` says what\n"
            ));
            Some(exit_codes::UNVERIFIED)
        }
        End::Unknown | End::Removed if ended_in_front(known) => {
            unknown("it ran in the foreground: its code went to who called `penfold run`")
        }
        End::Unknown | End::Removed => {
            unknown("nobody looked after its end, so the exit code of its command is not known")
        }
        End::SandboxRef { cause: Cause::Timeout, .. } => Some(exit_codes::TIMED_OUT),
        End::SandboxRef { cause: Cause::StartFailed, failure, .. } => {
            let kind = failure.as_ref().map_or(FailureKind::NotStarted, FailureKind::from);
            Some(kind.exit_code())
        }
        End::SandboxRef { exit: Some(status), .. } => Some(command_code(*status)),
        End::SandboxRef { exit: None, .. } => unknown("nobody saw how its command ended"),
    }
}

/// Whether it was a foreground sandbox whose record went with it, as it does when its supervisor has looked after its end.
fn ended_in_front(known: &SandboxRef) -> bool {
    let foreground = known.intent.as_ref().is_some_and(|intent| intent.detached.is_none());
    let gone = |files: &Files| files.intent().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    foreground && known.record.as_ref().is_some_and(gone)
}
