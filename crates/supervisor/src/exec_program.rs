//! What an exec runs: the description of its client, completed by what it has in common with the command of the sandbox.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penfold_process::Pid;
use penfold_state::{Contain, ExecSpec, Identity, Ipc, OwnerExit, Spec};
use penfold_sys::launch::Program;
use penfold_sys::signal::{self, SignalSet};
use penfold_teardown::Level;
use rustix::fs::SealFlags;
use rustix::process::getppid;

use crate::environment::{self, InheritedSignals, StartPlace};
use crate::jail::{JailLeader, find_jail};
use crate::sandbox_parts::SandboxParts;

/// The largest description of a command. The kernel accepts at most 6 MiB of arguments and environment, and JSON needs
/// up to four bytes for each.
const MAX_REQUEST_BYTES: u64 = 32 << 20;

/// What an exec runs.
pub(crate) struct ExecProgram<'a> {
    pub(crate) spec: Spec,
    pub(crate) program: Program,
    /// The user of the sandbox, as whom the program runs.
    pub(crate) identity: Option<&'a Identity>,
}

/// Prepares the program of an exec: in the directory and the jail of the sandbox, whose leader this is.
///
/// # Errors
/// The reason, as a sentence.
pub(crate) fn exec_program(
    sandbox: &SandboxParts,
    mut exec: ExecSpec,
    leader: Option<Pid>,
    level: Level,
) -> Result<ExecProgram<'_>, String> {
    let of_sandbox = &sandbox.setup.spec;
    let jail = of_sandbox.jail.as_ref().filter(|_| !exec.beside);
    if jail.is_some() && exec.own_user {
        return Err("a command in a jail runs as the user of the jail; `--user` needs `--beside`".to_owned());
    }
    let identity = of_sandbox.identity.as_ref().filter(|_| !exec.own_user);
    let scratch = environment::scratch_of(sandbox.setup.scratch.as_deref(), of_sandbox.identity.as_ref());
    let given = exec.directory.take();
    let directory = match jail {
        None => directory(of_sandbox, given, scratch.as_deref()),
        // A relative directory begins in that of the jail.
        Some(_) => given,
    };
    let spec = Spec { jail: jail.cloned(), ..exec_spec(of_sandbox, exec, level, directory)? };
    let inherited = InheritedSignals { mask: SignalSet::empty(), child_ignored: false };
    let place = match jail {
        None => StartPlace { netns: of_sandbox.netns(), ..StartPlace::of(&spec, scratch.as_deref()) },
        Some(jail) => StartPlace::in_jail(jail, spec.directory.as_deref(), scratch.as_deref()),
    };
    let mut program = environment::build_program(&spec, &spec.command, place, &inherited)
        .map_err(|error| error.to_string())?;
    if let Some(entry) = sandbox.setup.program.ipc() {
        program.enter_ipc(entry.clone());
    }
    if let Some(jail) = jail {
        program.enter_jail(find_jail(jail_leader(sandbox, leader)?, jail, true)?);
    }
    Ok(ExecProgram { spec, program, identity })
}

/// Reads the description from a sealed memfd, which the client can neither change nor block.
pub(crate) fn read_exec_spec(spec: OwnedFd) -> io::Result<ExecSpec> {
    let sealed = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK;
    if !rustix::fs::fcntl_get_seals(&spec)?.contains(sealed) {
        return Err(io::Error::other("it is not sealed"));
    }
    rustix::fs::seek(&spec, rustix::fs::SeekFrom::Start(0))?;
    let mut text = Vec::new();
    File::from(spec).take(MAX_REQUEST_BYTES).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Returns the process that leads to the jail of the sandbox. This process is a child of its parent.
fn jail_leader(sandbox: &SandboxParts, leader: Option<Pid>) -> Result<JailLeader, String> {
    let (pid, parent) = leader.zip(getppid()).ok_or("the command of the sandbox is unknown")?;
    Ok(JailLeader { pid, is_init: sandbox.level == Level::Pidns, parent })
}

/// Returns the directory in which an exec starts: that of the sandbox, from where a relative one begins. `None` for the directory
/// of this process, which is that of the sandbox's caller.
fn directory(sandbox: &Spec, given: Option<PathBuf>, scratch: Option<&Path>) -> Option<PathBuf> {
    let own = sandbox.directory.as_deref().or(scratch);
    match (given, own) {
        (Some(given), Some(own)) => Some(own.join(given)),
        (Some(given), None) => Some(given),
        (None, own) => own.map(Path::to_owned),
    }
}

/// Builds the spec of an exec: options that the request leaves out come from the sandbox.
fn exec_spec(
    sandbox: &Spec,
    exec: ExecSpec,
    level: Level,
    directory: Option<PathBuf>,
) -> Result<Spec, String> {
    let mut environment = sandbox.environment.clone();
    for (key, value) in exec.environment {
        environment.retain(|(known, _)| *known != key);
        environment.extend(value.map(|value| (key, value)));
    }
    let signal = if exec.as_sandbox { Some(sandbox.signal) } else { signal::signal_of_number(exec.signal) };
    Ok(Spec {
        id: sandbox.id,
        name: None,
        claim: None,
        labels: exec.recorded.map(|recorded| recorded.labels).unwrap_or_default(),
        command: exec.command,
        environment,
        directory,
        scratch: None,
        resources: Vec::new(),
        contain: if level == Level::Cgroup { Contain::Cgroup } else { Contain::Subreaper },
        limits: sandbox.limits,
        timeout: exec.timeout_ms.map(Duration::from_millis),
        signal: signal.ok_or("there is no such signal")?,
        grace: Duration::from_millis(exec.grace_ms),
        patience: sandbox.patience,
        owner: None,
        on_owner_exit: if exec.detached { OwnerExit::Keep } else { OwnerExit::Kill },
        state_root: sandbox.state_root.clone(),
        report: None,
        status: None,
        event_log: None,
        wrapper: Vec::new(),
        identity: None,
        profile: None,
        jail: None,
        ipc: if sandbox.has_own_ipc() { sandbox.ipc } else { Ipc::Host },
        leaks_after: None,
        seeks_clients: false,
        stop_command: Vec::new(),
        spare: Vec::new(),
        allow_outside: sandbox.allow_outside,
        outside: None,
        on_stdin_close: None,
        stop_on_interrupt: false,
        detach: None,
    })
}
