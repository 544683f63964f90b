//! `penfold wait`.

use std::time::Duration;

use clap::Args;
use penfold_control::SandboxEnd;
use penfold_teardown::Cause;

use crate::args::ids::Ids;
use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::find::Among;
use crate::sandboxes::here::Here;
use crate::sandboxes::on_server::OnServer;
use crate::sandboxes::tally::Tally;
use crate::sandboxes::{Sandboxes, select};
use crate::{exit_codes, output, value};
use penfold_launch::LaunchErrorKind;

/// The verb `wait`.
pub(crate) const VERB: Verb = Verb {
    name: "wait",
    aliases: &[],
    about: "Wait until sandboxes have ended and return their exit codes",
    description: "Waits until sandboxes have ended and prints the exit code of each command on a line, in the order of \
        the ids. The exit code is that of the command; for several sandboxes, the first code that is not 0. \
        The codes are those of `penfold run`. A restart by `run --restart` is no end, and `penfold restart` is one. Every `penfold wait` gets the same answer. For a sandbox without a \
        supervisor it waits until all members are gone. If no supervisor saw how a command ended, it prints `unknown` \
        and exits with 120; penfold never invents a code. The same holds for a foreground sandbox: only its \
        `penfold run` gets the code. For an unknown or ambiguous ID the exit code is 125.",
    examples: &[
        ("penfold wait web", "wait for the sandbox web; `$?` is the code of its command"),
        (
            "penfold wait --timeout 1m web",
            "wait at most a minute; exit with 124 if web has not ended by then",
        ),
        ("penfold wait --any 3f9 c07", "wait for the first of two, and print its id and code"),
    ],
    usage_failure: FailureKind::NotStarted,
    define: WaitArgs::augment_args,
    places: Places::All(|global, client, matches| {
        wait(global, OnServer(client), &usage::read(&VERB, matches)?)
    }),
    call: |global, matches| {
        let here = Here::for_many(global).map_err(Failure::not_started)?;
        wait(global, here, &usage::read(&VERB, matches)?)
    },
};

/// The arguments of `penfold wait`.
#[derive(Args, Clone, Debug)]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    pub(crate) ids: Ids,
    /// Wait for the first sandbox to end, and print `ID CODE`.
    #[arg(long)]
    pub(crate) any: bool,
    /// Wait at most this long.
    #[arg(long, value_name = "DURATION", value_parser = value::duration, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
}

/// Waits until sandboxes have ended; returns the exit codes of their commands.
fn wait(global: &Global, mut sandboxes: impl Sandboxes, args: &WaitArgs) -> Result<u8, Failure> {
    let selection = select::select(&mut sandboxes, &args.ids, Among::Living, true, "wait for")
        .map_err(Failure::not_started)?;
    let mut tally = Tally::default();
    let missed: Vec<Failure> = selection.missed.into_iter().map(Failure::not_started).collect();
    tally.missed(global, &missed);
    let missed = missed.first().map(Failure::exit_code);
    let ends = sandboxes.wait(&selection.found, args.any, args.timeout)?;
    let (mut left, mut codes) = (Vec::new(), Vec::from_iter(missed));
    for (sandbox, end) in selection.found.iter().zip(&ends) {
        let id = sandboxes.shown(sandbox).id;
        let Some(end) = end else {
            left.push(id);
            continue;
        };
        let in_front = sandboxes.was_in_front(sandbox);
        if *end == SandboxEnd::Removed && !in_front {
            let sentence =
                format!("no sandbox is called `{id}` any more: its record was removed during the wait");
            tally.missed(global, &[Failure::new(FailureKind::NotStarted, sentence)]);
            codes.push(exit_codes::NOT_STARTED);
            continue;
        }
        let code = code(id, end, sandboxes.has_exited(sandbox), in_front);
        let text = code.map_or_else(|| "unknown".to_owned(), |code| code.to_string());
        tally.done(&if args.any { format!("{id} {text}") } else { text });
        codes.push(code.unwrap_or(exit_codes::UNVERIFIED));
    }
    let enough = args.any && left.len() < ends.len();
    if !left.is_empty() && !enough {
        let sentence = format!("not ended in time: {}", left.join(", "));
        codes.push(Failure::new(FailureKind::TimedOut, sentence).report(false));
    }
    tally.finish()?;
    // The codes of commands have no order of severity, so the first one that is not 0 counts.
    Ok(codes.into_iter().find(|&code| code != exit_codes::SUCCESS).unwrap_or(exit_codes::SUCCESS))
}

/// The exit code by the table of `penfold run`. If the code is unknown, prints the reason and returns `None`.
///
/// `over` means that the command itself has ended; `in_front`, that only its `penfold run` got the code.
fn code(id: &str, end: &SandboxEnd, over: bool, in_front: bool) -> Option<u8> {
    let unknown = |why: &str| {
        output::message(&format!("penfold: {id}: {why}\n"));
        None
    };
    match end {
        SandboxEnd::Unverified => {
            // The survivor may be the command itself.
            let over = if over { "the command has ended, but " } else { "" };
            output::message(&format!(
                "penfold: {id}: {over}some members of the sandbox are not gone; `penfold status {id}` lists them\n"
            ));
            Some(exit_codes::UNVERIFIED)
        }
        SandboxEnd::Unknown | SandboxEnd::Removed if in_front => {
            unknown("the sandbox ran in the foreground: only its `penfold run` got the exit code")
        }
        SandboxEnd::Unknown | SandboxEnd::Removed => {
            unknown("no supervisor saw the end, so the exit code of the command is unknown")
        }
        SandboxEnd::Known { cause: Cause::Timeout, .. } => Some(exit_codes::TIMED_OUT),
        SandboxEnd::Known { cause: Cause::StartFailed, failure, .. } => {
            let kind = failure
                .as_ref()
                .map_or(FailureKind::NotStarted, |failure| LaunchErrorKind::from(failure).into());
            Some(kind.exit_code())
        }
        SandboxEnd::Known { exit: Some(status), .. } => Some(status.process_code()),
        SandboxEnd::Known { exit: None, .. } => unknown("no supervisor saw how the command ended"),
    }
}
