//! Ends one virtual machine with its chain. Without a runner its directories go, too.

use std::io;
use std::path::PathBuf;
use std::time::Instant;

use penfold_doctor::foreign::{Held, Vm, VmDirectory, VmState};
use penfold_state::error_chain;
use rustix::io::Errno;
use serde::Serialize;

use super::{GcArgs, request, vms};
use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind};
use crate::foreign::{self, Ended, Targets};
use crate::text::lines;
use crate::text::vm as text;
use crate::{exit_codes, output};

/// The result for a directory.
#[derive(Serialize)]
struct Directory {
    #[serde(with = "penfold_process::path_text")]
    path: PathBuf,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The output of `--json`.
#[derive(Serialize)]
struct VmOutput<'a> {
    #[serde(flatten)]
    ended: &'a Ended,
    vm: &'a Vm,
    removed: &'a [Directory],
}

/// Ends a virtual machine, after a question on a terminal. Returns the exit code.
pub(super) fn end(global: &Global, args: &GcArgs, shown: &Vm) -> Result<u8, Failure> {
    foreign::refuse_ours(shown.member.id.pid)?;
    if !args.dry_run && !args.force {
        confirm(shown)?;
    }
    // The answer may have taken long, as may the end of the one before.
    let Some(vm) = vms(global)?.into_iter().find(|vm| vm.member.id == shown.member.id) else {
        return gone(global, args, shown);
    };
    if !vm.is_same(shown) {
        let sentence = format!("the processes above VM {} have changed, so nothing was ended", shown.id);
        return Err(
            Failure::new(FailureKind::Usage, sentence).hint("`penfold doctor --foreign` lists the processes")
        );
    }
    foreign::refuse_ours(vm.top().pid)?;
    let targets = Targets::tree(global, vm.top())?;
    if args.dry_run {
        if !args.json {
            output::data(would_remove(&vm).as_bytes())?;
        }
        return targets.show(args.json);
    }
    let held: Vec<(&VmDirectory, Result<Option<Held>, Errno>)> =
        vm.directories.iter().map(|directory| (directory, directory.hold())).collect();
    let ended = targets.end(&request(args, vm.top().pid))?;
    foreign::messages(global, &ended.findings);
    // A directory is in use as long as a process of the chain may live.
    let removed: Vec<Directory> = if ended.findings.verified {
        // The socket may be in the workspace.
        held.into_iter().rev().map(|(directory, held)| remove(args, directory, held)).collect()
    } else {
        Vec::new()
    };
    if args.json {
        output::json(&VmOutput { ended: &ended, vm: &vm, removed: &removed })?;
    } else if !global.quiet {
        output::data(lines_of(&removed).as_bytes())?;
    }
    if let (VmState::Managed, false, Some(runner)) = (vm.state, global.quiet, vm.runner()) {
        let (name, pid) = (&runner.name, runner.id.pid.as_raw_pid());
        let mut note = String::new();
        lines::say(
            &mut note,
            &format!("the directories of VM {} are left to its runner {name} ({pid})", vm.id),
        );
        output::message(&note);
    }
    let failed = removed.iter().any(|directory| directory.outcome == "failed");
    Ok(if failed { exit_codes::STILL_THERE } else { ended.exit_code() })
}

/// Asks for confirmation; refuses without a terminal.
fn confirm(vm: &Vm) -> Result<(), Failure> {
    if !output::can_ask() {
        let sentence = format!("refused to end VM {} and its wrappers without confirmation", vm.id);
        let hint = format!("`penfold gc --foreign -f {}` does it", vm.id);
        return Err(Failure::new(FailureKind::Usage, sentence).hint(hint));
    }
    let mut question = String::new();
    let mut line = |words: &str| {
        lines::push(&mut question, words);
        question.push('\n');
    };
    let pid = vm.member.id.pid.as_raw_pid();
    line(&format!(
        "  {}  {}, pid {pid}, parent {}, {}",
        vm.id,
        vm.monitor,
        text::parent(vm),
        text::state(vm)
    ));
    for wrapper in vm.ancestors.iter().take(vm.wrappers) {
        line(&format!("    with {} ({})", wrapper.name, wrapper.id.pid.as_raw_pid()));
    }
    for directory in vm.directories.iter().filter(|directory| directory.kept.is_none()) {
        line(&format!("    with the directory {}", directory.path.display()));
    }
    question.push_str("End this VM? [y/N] ");
    if output::ask(&question) {
        return Ok(());
    }
    Err(Failure::new(FailureKind::Usage, "nothing was ended: the answer was not `y`"))
}

/// Reports that the virtual machine has ended by itself: its directories are not judged any more.
fn gone(global: &Global, args: &GcArgs, vm: &Vm) -> Result<u8, Failure> {
    if args.json {
        output::json(&VmOutput { ended: &Ended::nothing(), vm, removed: &[] })?;
    } else if !global.quiet {
        output::message("penfold: nothing to end\n");
    }
    Ok(exit_codes::SUCCESS)
}

fn remove(args: &GcArgs, directory: &VmDirectory, held: Result<Option<Held>, Errno>) -> Directory {
    let path = directory.path.clone();
    let removed = match held {
        Ok(None) => return Directory { path, outcome: "kept", reason: directory.kept.clone() },
        Ok(Some(held)) => held.remove(Instant::now() + args.patience.patience),
        Err(errno) => Err(io::Error::from(errno)),
    };
    match removed {
        Ok(()) => Directory { path, outcome: "removed", reason: None },
        Err(error) => Directory { path, outcome: "failed", reason: Some(error_chain(&error)) },
    }
}

fn lines_of(directories: &[Directory]) -> String {
    let mut text = String::new();
    for Directory { path, outcome, reason } in directories {
        let tag = match *outcome {
            "removed" => "[ok]  ",
            "failed" => "[fail]",
            _ => "[kept]",
        };
        let why = reason.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        lines::push(&mut text, &format!("{tag} {}{why}", path.display()));
        text.push('\n');
    }
    text
}

fn would_remove(vm: &Vm) -> String {
    let mut text = String::new();
    for directory in vm.directories.iter().filter(|directory| directory.kept.is_none()) {
        lines::push(&mut text, &format!("would remove {}", directory.path.display()));
        text.push('\n');
    }
    text
}
