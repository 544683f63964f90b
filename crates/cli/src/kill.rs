//! `penfold kill`: what it does.

use penfold_control::{ANSWER, Client, ClientError, Finder, How, Known, Limits, view};
use penfold_state::Files;
use penfold_state::wire::{Answer, Request};
use rustix::process::Signal;

use crate::args::kill::KillArgs;
use crate::args::{Global, signal};
use crate::exit_codes;
use crate::failure::Failure;
use crate::sandboxes::find::Among;
use crate::sandboxes::select;
use crate::sandboxes::tally::{self, Tally};

/// Ends sandboxes at once, or sends a signal to their commands.
pub(crate) fn kill(global: &Global, args: &KillArgs) -> Result<u8, Failure> {
    let signal = signal::sendable(args.signal)?;
    let act = if signal == Signal::KILL { "kill" } else { "signal" };
    let (finder, selection) = select::select(global, &args.ids, Among::Living, args.force, act)?;
    let mut tally = Tally::default();
    tally.missed(global, &selection.missed);
    if signal == Signal::KILL {
        let mut slow = tally::progress(global, "killing");
        let limits = Limits { patience: args.patience.patience, ..Limits::default() };
        let fates = penfold_control::end(&finder, &selection.found, How::Kill, &limits, &mut slow);
        for (known, fate) in selection.found.iter().zip(fates) {
            tally.fate(&known.id, fate);
        }
    } else {
        let records: Vec<Option<&Files>> = selection
            .found
            .iter()
            .map(|known| known.record.as_ref().filter(|_| is_living(&finder, known)))
            .collect();
        let request = Request::Forward(signal.as_raw());
        let answers = penfold_control::at_once(&records, |files| {
            files.map(|files| Client::connect(files, ANSWER)?.request(&request, ANSWER))
        });
        for (known, answer) in selection.found.iter().zip(answers) {
            match is_sent(&finder, known, answer) {
                Ok(()) => tally.done(&known.id),
                Err(failure) => tally.failed(&failure, global.color.wanted(&std::io::stderr())),
            }
        }
    }
    tally.finish()
}

fn is_living(finder: &Finder, known: &Known) -> bool {
    view::view(finder, known).is_some_and(|seen| seen.word.is_living())
}

/// What a supervisor says that was to send a signal to its command. One that is over takes none, which is as well.
fn is_sent(
    finder: &Finder,
    known: &Known,
    answer: Option<Result<Answer, ClientError>>,
) -> Result<(), Failure> {
    let failed = |reason: String| {
        Failure::new(exit_codes::FAILURE, format!("cannot signal the command of sandbox {}", known.id))
            .because(reason)
    };
    match answer {
        Some(Ok(Answer::Done)) => Ok(()),
        _ if !is_living(&finder.again(), known) => Ok(()),
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
