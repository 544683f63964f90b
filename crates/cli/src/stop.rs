//! `penfold stop`: what it does.

use penfold_control::{How, Limits};

use crate::args::stop::StopArgs;
use crate::args::{Global, signal};
use crate::failure::Failure;
use crate::sandboxes::find::Among;
use crate::sandboxes::select;
use crate::sandboxes::tally::{self, Tally};

/// Ends sandboxes politely.
pub(crate) fn stop(global: &Global, args: &StopArgs) -> Result<u8, Failure> {
    let signal = args.signal.map(signal::sendable).transpose()?;
    let (finder, selection) = select::select(global, &args.ids, Among::Living, args.force, "stop")?;
    let how = How::Stop { signal, grace: args.grace };
    let mut tally = Tally::default();
    tally.missed(global, &selection.missed);
    let limits = Limits { patience: args.patience.patience, ..Limits::default() };
    let mut slow = tally::progress(global, "stopping");
    let fates = penfold_control::end(&finder, &selection.found, how, &limits, &mut slow);
    for (known, fate) in selection.found.iter().zip(fates) {
        tally.fate(&known.id, fate);
    }
    tally.finish()
}
