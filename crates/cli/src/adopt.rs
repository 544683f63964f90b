//! `penfold adopt`: what it does.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use penfold_control::Finder;
use penfold_process::{Pid, ProcessId, Stat};
use penfold_state::{Contain, Detach, Id, OwnerExit, Spec, StartFailure};
use penfold_supervisor::Detached;
use rustix::io::Errno;
use rustix::process::Signal;

use crate::args::Global;
use crate::args::adopt::AdoptArgs;
use crate::failure::Failure;
use crate::{exit_codes, foreign, output, surroundings};

/// The grace of a stop that does not say another.
const GRACE: Duration = Duration::from_secs(10);
/// How long a kill may take until what is left is named.
const PATIENCE: Duration = Duration::from_secs(10);
/// A log that nothing is written to.
const LOG: u64 = 64 << 10;

/// Puts a tree under a handle; prints the id.
pub(crate) fn adopt(global: &Global, args: AdoptArgs) -> Result<u8, Failure> {
    let number = args.pid.as_raw_pid();
    let failed = |exit| Failure::new(exit, format!("cannot adopt process {number}"));
    let (root, members) = foreign::tree(args.pid)?
        .ok_or_else(|| Failure::new(exit_codes::NO_SUCH_ID, format!("there is no process {number}")))?;
    if rustix::process::test_kill_process(args.pid) == Err(Errno::PERM) {
        return Err(failed(exit_codes::NOT_PERMITTED).because(std::io::Error::from(Errno::PERM)));
    }
    refuse_members(global, &members)?;
    let front = penfold_supervisor::adopt(spec(global, args, root)?, root)
        .map_err(|error| failed(exit_codes::FAILURE).because(error))?;
    let id = front.id();
    let outcome = match front.wait_running().map_err(|error| failed(exit_codes::FAILURE).because(error))? {
        Detached::Over(outcome) => outcome,
        Detached::Running(front) => {
            front.let_go().map_err(|error| failed(exit_codes::FAILURE).because(error))?;
            output::data(format!("{id}\n").as_bytes(), exit_codes::SUCCESS)?;
            return Ok(exit_codes::SUCCESS);
        }
    };
    match outcome.report.failure {
        Some(StartFailure::Other(reason)) => Err(failed(exit_codes::FAILURE).because(reason)),
        _ => Err(failed(exit_codes::FAILURE).because("its supervisor did not come to look after it")),
    }
}

/// Refuses a tree in which somebody belongs to a sandbox that is looked after: it would have two ends.
fn refuse_members(global: &Global, members: &[Stat]) -> Result<(), Failure> {
    for stat in members {
        foreign::refuse_ours(stat.pid)?;
    }
    // One that was adopted and could not be moved shows in its record only.
    let known = Finder::new(&surroundings::root(global)).all().map_err(|error| {
        Failure::new(exit_codes::FAILURE, "cannot tell whether it belongs to a sandbox").because(error)
    })?;
    let pids: HashSet<ProcessId> = members.iter().map(Stat::id).collect();
    for files in known.iter().filter_map(|known| known.record.as_ref()) {
        let leader = files.state().ok().flatten().and_then(|state| state.leader);
        if leader.is_some_and(|leader| pids.contains(&leader)) && files.lock().may_be_held() {
            let id = files.name();
            return Err(Failure::new(exit_codes::USAGE, format!("it belongs to sandbox {id} already"))
                .hint(format!("`penfold kill {id}` ends it")));
        }
    }
    Ok(())
}

fn spec(global: &Global, args: AdoptArgs, root: ProcessId) -> Result<Spec, Failure> {
    let failure = |error| Failure::new(exit_codes::FAILURE, "cannot make an id").because(error);
    Ok(Spec {
        id: Id::new().map_err(failure)?,
        name: args.name,
        claim: None,
        labels: args.label.into_iter().map(|label| (label.key, label.value)).collect(),
        command: command(root.pid),
        environment: Vec::new(),
        directory: None,
        scratch_in: None,
        contain: Contain::Auto,
        timeout: None,
        signal: Signal::TERM,
        grace: GRACE,
        patience: PATIENCE,
        on_owner_exit: OwnerExit::Keep,
        state_root: surroundings::root(global),
        report: None,
        stop_on_interrupt: false,
        report_is_shared: false,
        detach: Some(Detach {
            ttl: args.ttl.filter(|ttl| !ttl.is_zero()),
            idle: None,
            keep: false,
            remove: false,
            terminal: false,
            log_limit: LOG,
        }),
    })
}

/// What it runs, for people.
fn command(pid: Pid) -> Vec<OsString> {
    let number = pid.as_raw_pid();
    let line = std::fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
    let line = line.strip_suffix(b"\0").unwrap_or(&line);
    if line.is_empty() {
        let name = std::fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
        return vec![format!("[{}]", name.trim_end()).into()];
    }
    line.split(|&byte| byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect()
}
