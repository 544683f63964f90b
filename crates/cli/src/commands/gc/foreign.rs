//! `penfold gc --foreign`: named process trees and virtual machines that penfold did not start.

mod vm;

use penfold_doctor::foreign::{self as host, Vm};
use rustix::process::{Pid, Signal};

use super::GcArgs;
use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::foreign::{self, Request, Target};
use crate::{exit_codes, surroundings, value};

/// What an argument means.
enum Named {
    /// A virtual machine.
    Vm(Box<Vm>),
    /// A process and its descendants.
    Tree(Pid),
}

/// Ends trees and virtual machines one after another. A failure does not stop the loop.
pub(super) fn end(global: &Global, args: &GcArgs) -> Result<u8, Failure> {
    let vms = vms(global)?;
    let coloured = global.color.wanted(&std::io::stderr());
    let mut exit = exit_codes::SUCCESS;
    for word in &args.words {
        let done = named(&vms, word).and_then(|named| match named {
            Named::Vm(vm) => vm::end(global, args, &vm),
            Named::Tree(pid) => end_tree(global, args, pid),
        });
        let done = done.unwrap_or_else(|failure| failure.report(coloured));
        if exit == exit_codes::SUCCESS {
            exit = done;
        }
    }
    Ok(exit)
}

/// Finds the virtual machines that penfold did not start.
fn vms(global: &Global) -> Result<Vec<Vm>, Failure> {
    let found = host::find_foreign_trees(&surroundings::protected(global))
        .or_fail(FailureKind::Other, "cannot search the processes of this host")?;
    Ok(found.vms)
}

/// Resolves an argument: the id of a virtual machine, a pid, or a unique prefix of an id. No id is a number.
fn named(vms: &[Vm], word: &str) -> Result<Named, Failure> {
    let boxed = |vm: &Vm| Named::Vm(Box::new(vm.clone()));
    if let Some(vm) = vms.iter().find(|vm| vm.id == word) {
        return Ok(boxed(vm));
    }
    let begins: Vec<&Vm> = vms.iter().filter(|vm| !word.is_empty() && vm.begins_with(word)).collect();
    if !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()) {
        let pid = value::pid(word)?;
        let is_free = matches!(rustix::process::test_kill_process(pid), Err(rustix::io::Errno::SRCH));
        if let Some(vm) = vms.iter().find(|vm| vm.has(pid.as_raw_pid())) {
            return Ok(boxed(vm));
        }
        if begins.is_empty() || !is_free {
            return Ok(Named::Tree(pid));
        }
    }
    match begins.as_slice() {
        [vm] => Ok(boxed(vm)),
        [] => {
            let sentence = format!("no VM that penfold did not start has the id `{word}`");
            Err(Failure::new(FailureKind::NoSuchId, sentence)
                .hint("`penfold doctor --foreign` lists ids and pids"))
        }
        several => {
            let ids: Vec<&str> = several.iter().map(|vm| vm.id.as_str()).collect();
            let sentence = format!("`{word}` matches {} VMs: {}", ids.len(), ids.join(", "));
            Err(Failure::new(FailureKind::Ambiguous, sentence).hint("give more characters, or the whole id"))
        }
    }
}

/// Ends a process and its descendants, as `penfold reap --pid` does.
fn end_tree(global: &Global, args: &GcArgs, pid: Pid) -> Result<u8, Failure> {
    foreign::refuse_ours(pid)?;
    foreign::end(global, &request(args, pid))
}

fn request(args: &GcArgs, pid: Pid) -> Request {
    Request {
        target: Target::process(pid),
        signal: Signal::TERM,
        grace: args.grace,
        patience: args.patience.patience,
        dry_run: args.dry_run,
        json: args.json,
    }
}
