//! `penfold extend`.

use std::time::Duration;

use clap::Args;
use penfold_state::time::whole_millis;

use crate::args::usage;
use crate::args::verb::{Places, Verb};
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::Sandboxes;
use crate::sandboxes::find::Miss;
use crate::sandboxes::here::Here;
use crate::sandboxes::on_server::OnServer;
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
    places: Places::All(|_, client, matches| extend(&OnServer(client), &usage::read(&VERB, matches)?)),
    call: |global, matches| extend(&Here::new(global), &usage::read(&VERB, matches)?),
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
fn extend(sandboxes: &impl Sandboxes, args: &ExtendArgs) -> Result<u8, Failure> {
    let sandbox = sandboxes.find(&args.id).map_err(Miss::into_failure)?;
    let id = sandboxes.shown(&sandbox).id;
    // Round up: 0 would remove the lease.
    let ms = if args.lease.is_zero() { 0 } else { whole_millis(args.lease).max(1) };
    sandboxes.extend(&sandbox, ms).map_err(|error| {
        Failure::new(FailureKind::Other, format!("cannot extend the lease of sandbox {id}")).because(error)
    })?;
    output::data(format!("{id}\n").as_bytes())?;
    Ok(exit_codes::SUCCESS)
}
