//! `penfold stop`: what it does.

use penfold_control::{How, Limits};

use crate::args::Global;
use crate::args::ids::Among;
use crate::args::stop::StopArgs;
use crate::ended::{self, Tally};
use crate::exit_codes;
use crate::failure::Failure;
use crate::value::Signal;

/// Ends sandboxes politely.
pub(crate) fn stop(global: &Global, args: &StopArgs) -> Result<u8, Failure> {
    let signal = args.signal.map(number).transpose()?;
    let (finder, selection) = ended::select(global, &args.ids, Among::Living, args.force, "stop")?;
    let how = How::Stop { signal, grace: args.grace };
    let mut tally = Tally::default();
    tally.missed(global, &selection.missed);
    let limits = Limits { patience: args.patience.patience, ..Limits::default() };
    let mut slow = ended::progress(global, "stopping");
    let fates = penfold_control::end(&finder, &selection.found, how, &limits, &mut slow);
    for (known, fate) in selection.found.iter().zip(fates) {
        tally.fate(&known.id, fate);
    }
    tally.finish()
}

/// A signal as the kernel takes it.
///
/// # Errors
/// For the two that cannot be sent on purpose.
pub(crate) fn number(signal: Signal) -> Result<rustix::process::Signal, Failure> {
    penfold_sys::signal::signal(signal.number())
        .ok_or_else(|| Failure::new(exit_codes::USAGE, "signals 32 and 33 belong to the C library"))
}
