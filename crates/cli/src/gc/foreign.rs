//! `penfold gc --foreign`: the trees of named processes that penfold did not start.

use penfold_control::leaks::{self, Belongs};
use rustix::process::Pid;

use crate::args::Global;
use crate::args::gc::GcArgs;
use crate::args::reap::{ReapArgs, Target};
use crate::failure::Failure;
use crate::{exit_codes, reap, value};

/// Ends them one after the other, as `penfold reap --pid` does; each is acted on, whatever became of the others.
pub(super) fn end(global: &Global, args: &GcArgs) -> Result<u8, Failure> {
    let pids = args
        .words
        .iter()
        .map(|word| value::pid(word).map_err(|error| Failure::new(exit_codes::USAGE, error.to_string())))
        .collect::<Result<Vec<Pid>, Failure>>()?;
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
    refuse_ours(pid)?;
    let target = Target { pid: Some(pid), pgid: None, session: None, cgroup: None, env: None };
    let signal = value::signal("TERM").map_err(|error| Failure::new(exit_codes::USAGE, error.to_string()))?;
    let args = ReapArgs {
        target,
        grace: args.grace,
        signal,
        patience: args.patience,
        dry_run: args.dry_run,
        json: args.json,
    };
    reap::reap(global, &args)
}

/// Refuses what belongs to a sandbox of penfold: that has an end of its own.
pub(crate) fn refuse_ours(pid: Pid) -> Result<(), Failure> {
    let number = pid.as_raw_pid();
    match leaks::belongs(pid) {
        Ok(Belongs::Penfold) => Err(Failure::new(
            exit_codes::USAGE,
            format!("process {number} is a penfold and looks after a sandbox"),
        )
        .hint("`penfold ps` lists the sandboxes")),
        Ok(Belongs::Sandbox(id)) => {
            let id = id.unwrap_or_else(|| "ID".to_owned());
            Err(Failure::new(exit_codes::USAGE, format!("process {number} is a member of sandbox {id}"))
                .hint(format!("`penfold kill {id}` ends it")))
        }
        // Who is gone is told so by what follows.
        Ok(Belongs::Nobody | Belongs::Unknown) | Err(_) => Ok(()),
    }
}
