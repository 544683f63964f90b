//! `penfold adopt`.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use clap::Args;
use penfold_control::Resolver;
use penfold_process::{Pid, ProcessId, Stat};
use penfold_state::{Contain, Detach, Id, OwnerExit, Spec, StartFailure};
use penfold_supervisor::Detached;
use rustix::io::Errno;
use rustix::process::Signal;

use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::value::{self, Label};
use crate::{exit_codes, foreign, output, surroundings};

/// The verb `adopt`.
pub(crate) const VERB: Verb = Verb {
    name: "adopt",
    aliases: &[],
    about: "Put a process tree that penfold did not start under a handle",
    description: "Makes a detached sandbox around a process and all that descends from it, and prints its id: from then \
        on it has a name, a lease and an end like those that penfold started. Where that can be, the tree is moved into \
        a cgroup of its own. The sandbox ends when the process ends, on request, or when its lease runs out. How the \
        process ended is told to its parent only, so that the sandbox has no exit code. Never takes in pid 1, penfold \
        itself, what it runs under, or members of a sandbox.",
    examples: &[
        ("penfold adopt 4121", "take in a stray that `penfold doctor --foreign` shows"),
        ("penfold adopt --name web --ttl 2h 4121", "name it, and end it in two hours"),
    ],
    usage_failure: FailureKind::Usage,
    define: AdoptArgs::augment_args,
    call: |global, matches| adopt(global, usage::read(&VERB, matches)?),
};

/// What `penfold adopt` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct AdoptArgs {
    /// The process; all that descends from it is taken in with it.
    #[arg(value_name = "PID", value_parser = value::pid, allow_hyphen_values = true)]
    pub(crate) pid: Pid,
    /// Name of the sandbox.
    #[arg(long, value_name = "NAME", value_parser = value::name)]
    pub(crate) name: Option<String>,
    /// Attach a label; may be repeated, the last of a key counts.
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = value::label)]
    pub(crate) label: Vec<Label>,
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        help = "End the sandbox after this time, unless `penfold extend` renews it; 0 means never"
    )]
    pub(crate) ttl: Option<Duration>,
}

/// The grace of a stop that does not say another.
const GRACE: Duration = Duration::from_secs(10);
/// How long a kill may take until what is left is named.
const PATIENCE: Duration = Duration::from_secs(10);
/// A log that nothing is written to.
const LOG: u64 = 64 << 10;

/// Puts a tree under a handle; prints the id.
pub(crate) fn adopt(global: &Global, args: AdoptArgs) -> Result<u8, Failure> {
    let number = args.pid.as_raw_pid();
    let failed = |kind| Failure::new(kind, format!("cannot adopt process {number}"));
    let (root, members) = foreign::tree(args.pid)?
        .ok_or_else(|| Failure::new(FailureKind::NoSuchId, format!("there is no process {number}")))?;
    if rustix::process::test_kill_process(args.pid) == Err(Errno::PERM) {
        return Err(failed(FailureKind::NotPermitted).because(std::io::Error::from(Errno::PERM)));
    }
    refuse_members(global, &members)?;
    let launcher = penfold_supervisor::adopt(spec(global, args, root)?, root)
        .map_err(|error| failed(FailureKind::Other).because(error))?;
    let id = launcher.id();
    let outcome = match launcher.wait_running().map_err(|error| failed(FailureKind::Other).because(error))? {
        Detached::Over(outcome) => outcome,
        Detached::Running(launcher) => {
            launcher.let_go().map_err(|error| failed(FailureKind::Other).because(error))?;
            // The sandbox goes on all the same: `penfold ps` has its id.
            if let Err(error) = output::data(format!("{id}\n").as_bytes()) {
                Failure::from(error).report(false);
            }
            return Ok(exit_codes::SUCCESS);
        }
    };
    match outcome.report.failure {
        Some(StartFailure::Other(reason)) => Err(failed(FailureKind::Other).because(reason)),
        _ => Err(failed(FailureKind::Other).because("its supervisor did not come to look after it")),
    }
}

/// Refuses a tree in which somebody belongs to a sandbox that is looked after: it would have two ends.
fn refuse_members(global: &Global, members: &[Stat]) -> Result<(), Failure> {
    for stat in members {
        foreign::refuse_ours(stat.pid)?;
    }
    // One that was adopted and could not be moved shows in its record only.
    let sentence = "cannot tell whether it belongs to a sandbox";
    let known = Resolver::new(&surroundings::root(global)).all().or_fail(FailureKind::Other, sentence)?;
    let pids: HashSet<ProcessId> = members.iter().map(Stat::id).collect();
    for files in known.iter().filter_map(|known| known.record.as_ref()) {
        let leader = files.state().ok().flatten().and_then(|state| state.leader);
        if leader.is_some_and(|leader| pids.contains(&leader)) && files.lock().may_be_held() {
            let id = files.name();
            return Err(Failure::new(FailureKind::Usage, format!("it belongs to sandbox {id} already"))
                .hint(format!("`penfold kill {id}` ends it")));
        }
    }
    Ok(())
}

fn spec(global: &Global, args: AdoptArgs, root: ProcessId) -> Result<Spec, Failure> {
    Ok(Spec {
        id: Id::new().or_fail(FailureKind::Other, "cannot make an id")?,
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
