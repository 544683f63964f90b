//! `penfold extend`: what it does.

use penfold_control::{ANSWER, Client, view};
use penfold_state::state::Word;
use penfold_state::time::millis;
use penfold_state::wire::{Answer, Request};

use crate::args::Global;
use crate::args::extend::ExtendArgs;
use crate::failure::Failure;
use crate::sandboxes::find;
use crate::{exit_codes, output};

/// Renews the lease of a sandbox.
pub(crate) fn extend(global: &Global, args: &ExtendArgs) -> Result<u8, Failure> {
    let finder = find::finder(global);
    let known = find::resolve(&finder, &args.id)?;
    let failed = |reason: String| {
        Failure::new(exit_codes::FAILURE, format!("cannot extend the lease of sandbox {}", known.id))
            .because(reason)
    };
    let seen = view::view(&finder, &known);
    let word = seen.map(|seen| seen.word);
    let Some(files) = known.record.as_ref().filter(|_| word.is_some_and(Word::is_living)) else {
        return Err(failed(word.map_or_else(|| "it is gone".to_owned(), |word| format!("it is {word}"))));
    };
    let ms = millis(args.lease);
    // Less than a millisecond is not for ever.
    let ms = if args.lease.is_zero() { 0 } else { ms.max(1) };
    let answer = Client::connect(files, ANSWER)
        .and_then(|client| client.request(&Request::Extend(ms), ANSWER))
        .map_err(|error| failed(error.to_string()))?;
    match answer {
        Answer::Done => {}
        Answer::Refused(reason) => return Err(failed(reason)),
        Answer::Outcome(_) => return Err(failed("it has ended".to_owned())),
        _ => return Err(failed("its supervisor answers something else".to_owned())),
    }
    output::data(format!("{}\n", known.id).as_bytes(), exit_codes::FAILURE)?;
    Ok(exit_codes::SUCCESS)
}
