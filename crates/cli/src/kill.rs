//! `penfold kill`: what it does.

use penfold_sandbox::control::{self, ANSWER, Client, ClientError, How, Limits};
use penfold_sandbox::wire::{Answer, Request};
use penfold_sandbox::{Finder, Known, view};
use rustix::process::Signal;

use crate::args::Global;
use crate::args::ids::Among;
use crate::args::kill::KillArgs;
use crate::ended::{self, Tally};
use crate::failure::Failure;
use crate::{exit_codes, stop};

/// Ends sandboxes at once, or sends a signal to their commands.
pub(crate) fn kill(global: &Global, args: &KillArgs) -> Result<u8, Failure> {
    let signal = stop::number(args.signal)?;
    let act = if signal == Signal::KILL { "kill" } else { "signal" };
    let (finder, selection) = ended::select(global, &args.ids, Among::Living, args.force, act)?;
    let mut tally = Tally::default();
    tally.missed(global, &selection.missed);
    if signal == Signal::KILL {
        let mut slow = ended::progress(global, "killing");
        let fates = control::end(&finder, &selection.found, How::Kill, &Limits::default(), &mut slow);
        for (known, fate) in selection.found.iter().zip(fates) {
            tally.fate(&known.id, fate);
        }
    } else {
        for known in &selection.found {
            match send(&finder, known, signal) {
                Ok(()) => tally.done(&known.id),
                Err(failure) => tally.failed(&failure, global.color.wanted(&std::io::stderr())),
            }
        }
    }
    tally.finish()
}

/// Has the supervisor send a signal to the command. One that is over takes none, which is as well.
fn send(finder: &Finder, known: &Known, signal: Signal) -> Result<(), Failure> {
    let failed = |reason: String| {
        Failure::new(exit_codes::FAILURE, format!("cannot signal the command of sandbox {}", known.id))
            .because(reason)
    };
    let is_living =
        |finder: &Finder, known: &Known| view::view(finder, known).is_some_and(|seen| seen.word.is_living());
    if !is_living(finder, known) {
        return Ok(());
    }
    let asked = known.record.as_ref().map(|files| {
        let client = Client::connect(files, ANSWER)?;
        client.request(&Request::Forward(signal.as_raw()), ANSWER)
    });
    match asked {
        Some(Ok(Answer::Done)) => Ok(()),
        // It has ended meanwhile.
        Some(_) if !is_living(&finder.again(), known) => Ok(()),
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
