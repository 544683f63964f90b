//! `penfold adopt`.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use clap::Args;
use penfold_control::Resolver;
use penfold_process::{Pid, ProcessId, Stat};
use penfold_state::{Contain, Detach, Id, Ipc, Limits, OwnerExit, Spec, StartFailure};
use penfold_supervisor::DetachedStart;
use rustix::io::Errno;
use rustix::process::Signal;

use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::value::{self, Label};
use crate::{exit_codes, foreign, output, surroundings};

/// The verb `adopt`.
pub(crate) const VERB: Verb = Verb {
    name: "adopt",
    aliases: &[],
    about: "Make a sandbox of a process tree that penfold did not start",
    description: "Makes a detached sandbox of a process and its descendants, and prints the id. All commands for \
        detached sandboxes, such as `stop` and `extend`, then work on it. penfold moves the tree into a cgroup of its \
        own if the host permits. The sandbox ends when the process exits, on a stop or kill, or when the lease runs out. \
        The kernel reports the exit status to the parent of the process only, so the sandbox has no exit code. penfold \
        never adopts pid 1, itself, its own ancestors, or members of a sandbox.",
    examples: &[
        ("penfold adopt 4121", "adopt a stray that `penfold doctor --foreign` lists"),
        ("penfold adopt --name web --ttl 2h 4121", "give the sandbox a name, and end it in two hours"),
    ],
    usage_failure: FailureKind::Usage,
    define: AdoptArgs::augment_args,
    places: Places::Hosts,
    call: |global, matches| adopt(global, usage::read(&VERB, matches)?),
};

/// The arguments of `penfold adopt`.
#[derive(Args, Clone, Debug)]
pub(crate) struct AdoptArgs {
    /// The process; penfold adopts its descendants, too.
    #[arg(value_name = "PID", value_parser = value::pid, allow_hyphen_values = true)]
    pub(crate) pid: Pid,
    /// Name of the sandbox.
    #[arg(long, value_name = "NAME", value_parser = value::name)]
    pub(crate) name: Option<String>,
    /// Add a label; may be repeated; the last value of a key counts.
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

/// The default grace of a stop.
const GRACE: Duration = Duration::from_secs(10);
/// The time that a kill may take before penfold reports the survivors.
const PATIENCE: Duration = Duration::from_secs(10);
/// The size of the log, which stays empty: penfold does not have the output of an adopted tree.
const LOG: u64 = 64 << 10;

/// Makes a sandbox of a tree; prints the id.
pub(crate) fn adopt(global: &Global, args: AdoptArgs) -> Result<u8, Failure> {
    let number = args.pid.as_raw_pid();
    let failed = |kind| Failure::new(kind, format!("cannot adopt process {number}"));
    let (root, members) = foreign::tree(args.pid)?.ok_or_else(|| {
        Failure::new(FailureKind::NoSuchId, format!("cannot adopt process {number}: no such process"))
    })?;
    if rustix::process::test_kill_process(args.pid) == Err(Errno::PERM) {
        return Err(failed(FailureKind::NotPermitted).because(std::io::Error::from(Errno::PERM)));
    }
    refuse_members(global, &members)?;
    make(spec(global, args, root)?, root, &failed)
}

/// Makes a sandbox of a tree as the specification says, and prints the id.
pub(super) fn make(
    spec: Spec,
    root: ProcessId,
    failed: &dyn Fn(FailureKind) -> Failure,
) -> Result<u8, Failure> {
    let launcher = penfold_supervisor::adopt_process_tree(spec, root)
        .map_err(|error| failed(FailureKind::Other).because(error))?;
    let id = launcher.id();
    let outcome = match launcher.wait_running().map_err(|error| failed(FailureKind::Other).because(error))? {
        DetachedStart::Over(outcome) => outcome,
        DetachedStart::Running(launcher) => {
            launcher.detach().map_err(|error| failed(FailureKind::Other).because(error))?;
            // The sandbox keeps running: `penfold ps` shows its id.
            if let Err(error) = output::data(format!("{id}\n").as_bytes()) {
                Failure::from(error).report(false);
            }
            return Ok(exit_codes::SUCCESS);
        }
    };
    match outcome.report.failure {
        Some(StartFailure::Other(reason)) => Err(failed(FailureKind::Other).because(reason)),
        _ => Err(failed(FailureKind::Other).because("the supervisor did not start")),
    }
}

/// Refuses a tree with a member of a supervised sandbox: two supervisors would end the same process.
fn refuse_members(global: &Global, members: &[Stat]) -> Result<(), Failure> {
    for stat in members {
        foreign::refuse_ours(stat.pid)?;
    }
    // A tree that was adopted without a cgroup of its own is known by its record only.
    let sentence = "cannot tell whether the process belongs to a sandbox";
    let known = Resolver::new(&surroundings::root(global)).all().or_fail(FailureKind::Other, sentence)?;
    let pids: HashSet<ProcessId> = members.iter().map(Stat::id).collect();
    for files in known.iter().filter_map(|known| known.record.as_ref()) {
        let leader = files.state().ok().flatten().and_then(|state| state.leader);
        if leader.is_some_and(|leader| pids.contains(&leader)) && files.lock().may_be_held() {
            let id = files.name();
            return Err(Failure::new(
                FailureKind::Usage,
                format!("the process already belongs to sandbox {id}"),
            )
            .hint(format!("`penfold kill {id}` ends it")));
        }
    }
    Ok(())
}

/// Makes the specification of a sandbox of the tree of `root`.
pub(super) fn spec(global: &Global, args: AdoptArgs, root: ProcessId) -> Result<Spec, Failure> {
    Ok(Spec {
        id: Id::new().or_fail(FailureKind::Other, "cannot make an id")?,
        name: args.name,
        claim: None,
        labels: args.label.into_iter().map(|label| (label.key, label.value)).collect(),
        command: command(root.pid),
        environment: Vec::new(),
        directory: None,
        scratch: None,
        resources: Vec::new(),
        contain: Contain::Auto,
        limits: Limits::default(),
        timeout: None,
        signal: Signal::TERM,
        grace: GRACE,
        patience: PATIENCE,
        owner: None,
        on_owner_exit: OwnerExit::Keep,
        state_root: surroundings::root(global),
        report: None,
        status: None,
        event_log: None,
        wrapper: Vec::new(),
        identity: None,
        profile: None,
        jail: None,
        ipc: Ipc::Host,
        leaks_after: None,
        seeks_clients: false,
        stop_command: Vec::new(),
        spare: Vec::new(),
        allow_outside: false,
        outside: None,
        on_stdin_close: None,
        stop_on_interrupt: false,
        detach: Some(Detach {
            ttl_action: penfold_state::TtlAction::End,
            restart: None,
            life: None,
            launch: None,
            ttl: args.ttl.filter(|ttl| !ttl.is_zero()),
            idle: None,
            keep: false,
            remove: false,
            terminal: false,
            log_limit: LOG,
            ready: None,
            ready_pipe: None,
        }),
    })
}

/// The command line of the process for the record; `[name]` if /proc has none.
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
