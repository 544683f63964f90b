//! `penfold extend`.

use std::error::Error;
use std::time::Duration;

use clap::Args;
use penfold_control::{ANSWER, Client, ended_or, view};
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
    description: "Sets the lease of a detached sandbox: penfold stops the sandbox after DURATION from now. A sandbox that \
        was started without `--ttl` gets a lease. DURATION 0 removes the lease.",
    examples: &[
        ("penfold extend web 30m", "stop web in half an hour from now"),
        ("penfold extend web 0", "remove the lease of web"),
    ],
    usage_failure: FailureKind::Usage,
    define: ExtendArgs::augment_args,
    call: |global, matches| extend(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold extend`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExtendArgs {
    /// Id, unique prefix of an id, or name.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// The lease from now; 0 for no lease.
    #[arg(value_name = "DURATION", value_parser = value::duration, allow_hyphen_values = true)]
    pub(crate) lease: Duration,
}

/// Renews the lease of a sandbox.
pub(crate) fn extend(global: &Global, args: &ExtendArgs) -> Result<u8, Failure> {
    let resolver = find::resolver(global);
    let known = resolver.resolve(&args.id)?;
    let failed = |reason: Box<dyn Error>| {
        Failure::new(FailureKind::Other, format!("cannot extend the lease of sandbox {}", known.id))
            .because(reason)
    };
    let seen = view::view(&resolver, &known);
    let word = seen.map(|seen| seen.status);
    let Some(files) = known.record.as_ref().filter(|_| word.is_some_and(Status::is_living)) else {
        let reason =
            word.map_or_else(|| "the sandbox is gone".to_owned(), |word| format!("the sandbox is {word}"));
        return Err(failed(reason.into()));
    };
    let ms = millis(args.lease);
    // Round up: 0 would remove the lease.
    let ms = if args.lease.is_zero() { 0 } else { ms.max(1) };
    let answer = Client::connect(files, ANSWER)
        .and_then(|client| {
            penfold_sys::crash_point!("extend-connected");
            client.request(&Request::Extend(ms), ANSWER)
        })
        .map_err(|error| failed(ended_or(files, error).into()))?;
    match answer {
        Answer::Done => {}
        Answer::Refused(reason) => return Err(failed(reason.into())),
        Answer::Outcome(_) => return Err(failed("the sandbox has ended".into())),
        _ => return Err(failed("the supervisor sent an unexpected answer".into())),
    }
    output::data(format!("{}\n", known.id).as_bytes())?;
    Ok(exit_codes::SUCCESS)
}
