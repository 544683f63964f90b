//! `penfold gc --foreign`: the trees of named processes that penfold did not start.

use rustix::process::{Pid, Signal};

use super::GcArgs;
use crate::args::verb::Global;
use crate::exit_codes;
use crate::failure::Failure;
use crate::foreign::{self, Request, Target};
use crate::value::{self, Invalid};

/// Ends the trees one after another, as `penfold reap --pid` does. A failure does not stop the loop.
pub(super) fn end(global: &Global, args: &GcArgs) -> Result<u8, Failure> {
    let pids = args.words.iter().map(|word| value::pid(word)).collect::<Result<Vec<Pid>, Invalid>>()?;
    let coloured = global.color.wanted(&std::io::stderr());
    let mut exit = exit_codes::SUCCESS;
    for pid in pids {
        let done = end_one(global, args, pid).unwrap_or_else(|failure| failure.report(coloured));
        if exit == exit_codes::SUCCESS {
            exit = done;
        }
    }
    Ok(exit)
}

fn end_one(global: &Global, args: &GcArgs, pid: Pid) -> Result<u8, Failure> {
    foreign::refuse_ours(pid)?;
    let request = Request {
        target: Target::process(pid),
        signal: Signal::TERM,
        grace: args.grace,
        patience: args.patience.patience,
        dry_run: args.dry_run,
        json: args.json,
    };
    foreign::end(global, &request)
}
