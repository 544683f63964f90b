//! `penfold reap`: what it does.

use crate::args::reap::ReapArgs;
use crate::args::{Global, signal};
use crate::failure::Failure;
use crate::foreign::{self, Request};

/// Ends processes that penfold did not start.
pub(crate) fn reap(global: &Global, args: ReapArgs) -> Result<u8, Failure> {
    let request = Request {
        target: args.target,
        signal: signal::sendable(args.signal)?,
        grace: args.grace,
        patience: args.patience.patience,
        dry_run: args.dry_run,
        json: args.json,
    };
    foreign::end(global, &request)
}
