//! `penfold extend`.

use std::time::Duration;

use clap::Args;
use penfold_control::{ANSWER, Client, view};
use penfold_state::state::Status;
use penfold_state::time::millis;
use penfold_state::wire::{Answer, Request};

use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::find;
use crate::{exit_codes, output, value};

/// The verb `extend`.
pub(crate) const VERB: Verb = Verb {
    name: "extend",
    aliases: &[],
    about: "Renew the lease of a detached sandbox",
    description: "Sets the time at which a detached sandbox is stopped to so much from now, whether it was started with \
        `--ttl` or not. With 0 it has no such time any more.",
    examples: &[
        ("penfold extend web 30m", "stop web in half an hour from now, not earlier"),
        ("penfold extend web 0", "let web run for as long as it wants"),
    ],
    usage_failure: FailureKind::Usage,
    define: ExtendArgs::augment_args,
    call: |global, matches| extend(global, &usage::read(&VERB, matches)?),
};

/// What `penfold extend` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExtendArgs {
    /// Id, unique beginning of an id, or name.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// How long it may go on from now; 0 for as long as it wants.
    #[arg(value_name = "DURATION", value_parser = value::duration, allow_hyphen_values = true)]
    pub(crate) lease: Duration,
}

/// Renews the lease of a sandbox.
pub(crate) fn extend(global: &Global, args: &ExtendArgs) -> Result<u8, Failure> {
    let resolver = find::resolver(global);
    let known = resolver.resolve(&args.id)?;
    let failed = |reason: String| {
        Failure::new(FailureKind::Other, format!("cannot extend the lease of sandbox {}", known.id))
            .because(reason)
    };
    let seen = view::view(&resolver, &known);
    let word = seen.map(|seen| seen.status);
    let Some(files) = known.record.as_ref().filter(|_| word.is_some_and(Status::is_living)) else {
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
    output::data(format!("{}\n", known.id).as_bytes())?;
    Ok(exit_codes::SUCCESS)
}
