//! Starts a command in a running sandbox under an exec supervisor of its own, like a nested sandbox.
//!
//! The exec supervisor is a child of the supervisor and a subreaper. It ends its command's tree and nothing else. When
//! the sandbox ends, the exec ends with it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use penfold_cgroup::{Leaf, LeafPlace};
use penfold_process::{Pid, ProcFs, ProcessId};
use penfold_state::events::EventKind;
use penfold_state::intent::shorten_command;
use penfold_state::state::{self, Status};
use penfold_state::time::now_ms;
use penfold_sys::child;
use penfold_sys::launch::{IpcEntry, OwnStdio};
use penfold_sys::{ForkSide, fork};
use penfold_teardown::{Cause, Level};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::thread::ThreadNameSpaceType;

use crate::end_cell::SeenEnd;
use crate::exec_program::{ExecProgram, exec_program, read_exec_spec};
use crate::exec_stdio::{ExecStdio, record_exec};
use crate::execs::RunningExec;
use crate::identity;
use crate::poll::poll_or_pause;
use crate::sandbox_parts::{SandboxKind, SandboxParts};
use crate::setup::Setup;
use crate::signals;
use crate::wire::{self, Answer, ExecMessage};

/// The most execs at a time: `state.json` names them all and is read up to a size.
const MAX_RUNNING: usize = 2048;

/// A client's request for a command in the sandbox.
pub(crate) struct NewExec {
    /// The number of the client.
    pub(crate) client: u64,
    /// The request itself.
    pub(crate) exec: ExecMessage,
    /// The passed descriptors: the description of the command and its standard descriptors. A recorded exec has only a
    /// standard input.
    pub(crate) fds: Vec<OwnedFd>,
}

/// Forks an exec supervisor, which answers the client from then on. `init` is our init in the pid namespace, if there
/// is one; `supervise` is the exec supervisor's main function.
///
/// # Errors
/// The reason for a refusal, as a sentence.
pub(crate) fn begin_exec(
    parts: &mut SandboxParts,
    request: NewExec,
    init: Option<Pid>,
    supervise: fn(SandboxParts) -> !,
) -> Result<(), String> {
    let NewExec { client, exec, fds } = request;
    let mut fds = fds.into_iter();
    let spec = fds.next().ok_or("an exec needs its description")?;
    let sandbox = parts.leaf_of_execs();
    let leader = parts.setup.spec.jail.as_ref().and_then(|_| Some(parts.leader.load()?.0));
    let SandboxKind::Detached(detached) = &mut parts.kind else {
        return Err("it runs in the foreground".to_owned());
    };
    if detached.execs.running() >= MAX_RUNNING {
        return Err(format!("{MAX_RUNNING} commands run in it already"));
    }
    let (mut proc, gate) =
        open_proc_and_gate().map_err(|error| format!("cannot look after a command: {error}"))?;
    let socket = detached.control.take_socket(client).ok_or("who asked for it is gone")?;
    if has_disconnected(&socket) {
        return Err("who asked for it is gone".to_owned());
    }
    let (number, leaf) = detached.number_exec(sandbox.as_deref());
    let command = shorten_command(exec.command);
    let (stdio, recorded) = match ExecStdio::of(detached, number, exec.recorded, fds) {
        Ok(stdio) => stdio,
        Err(reason) => {
            // The server no longer has the client's socket.
            let _ = wire::offer_message(&socket, &Answer::Refused(reason));
            return Ok(());
        }
    };
    let requested = RequestedExec { spec, stdio, socket, leaf: leaf.clone(), init, leader };
    let refused = match fork() {
        Ok(ForkSide::Child) => {
            if !gate.await_open() {
                penfold_sys::fork::exit_now(1);
            }
            run_exec_supervisor(parts, requested, supervise)
        }
        Ok(ForkSide::Parent(pid)) => match identify(&mut proc, pid) {
            Ok((supervisor, pidfd)) => {
                detached.publish_events([EventKind::Exec { number, command: command.clone() }]);
                let command = state::shorten_exec_command(command);
                let state = state::ExecState { number, command, supervisor, started_at_ms: now_ms() };
                detached.execs.register(RunningExec { state, pidfd, leaf, recorded });
                // The state is written before the exec begins, so that a process that takes over knows the exec's
                // members.
                detached.write_status(Status::Running, parts.level, &parts.missing);
                let opened = gate.open();
                penfold_sys::crash_point!("exec-begun");
                opened.err().map(|error| format!("cannot begin: {error}"))
            }
            Err(error) => Some(format!("cannot look after it: {error}")),
        },
        Err(error) => Some(format!("cannot fork: {error}")),
    };
    if let Some(reason) = refused {
        if let ExecStdio::Recorded(plan) = &requested.stdio {
            detached.remove_exec_files(&plan.files);
        }
        let _ = wire::offer_message(&requested.socket, &Answer::Refused(reason));
    }
    Ok(())
}

/// Opens the descriptors that `identify` and the gate need, before the fork: later there may be no free descriptor.
fn open_proc_and_gate() -> io::Result<(ProcFs, ExecGate)> {
    Ok((ProcFs::open()?, ExecGate::new()?))
}

/// Returns the identity and a pidfd of the child.
fn identify(proc: &mut ProcFs, pid: Pid) -> io::Result<(ProcessId, OwnedFd)> {
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let stat = proc.stat(pid)?.ok_or(io::ErrorKind::NotFound)?;
    Ok((stat.id(), pidfd))
}

/// A pipe at which the child waits until it is registered. An unregistered exec would be neither listed nor ended.
struct ExecGate {
    wait: OwnedFd,
    open: OwnedFd,
}

impl ExecGate {
    fn new() -> io::Result<ExecGate> {
        let (wait, open) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok(ExecGate { wait, open })
    }

    /// Lets the child continue.
    fn open(self) -> io::Result<()> {
        rustix::io::write(&self.open, &[1])?;
        Ok(())
    }

    /// Waits in the child. False if the parent gave up or was killed.
    fn await_open(self) -> bool {
        drop(self.open);
        rustix::io::retry_on_intr(|| rustix::io::read(&self.wait, &mut [0; 1])) == Ok(1)
    }
}

/// Tells whether the client has disconnected. A delayed supervisor must not start a command that the client has
/// reported as failed.
fn has_disconnected(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    poll_or_pause(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

struct RequestedExec {
    spec: OwnedFd,
    stdio: ExecStdio,
    socket: OwnedFd,
    leaf: Option<PathBuf>,
    init: Option<Pid>,
    /// The leader of the sandbox.
    leader: Option<Pid>,
}

/// Runs the exec supervisor of one command.
fn run_exec_supervisor(
    parts: &mut SandboxParts,
    requested: RequestedExec,
    supervise: fn(SandboxParts) -> !,
) -> ! {
    let answers = requested.socket.try_clone();
    let cell = requested.stdio.cell();
    let ipc = parts.setup.program.ipc().map(IpcEntry::fds);
    let kept: Vec<BorrowedFd<'_>> = requested
        .stdio
        .fds()
        .into_iter()
        .chain([requested.spec.as_fd(), requested.socket.as_fd()])
        .chain(answers.as_ref().ok().map(AsFd::as_fd))
        .chain(cell.as_ref().map(AsFd::as_fd))
        .chain(ipc.iter().flat_map(|fds| fds.iter()).map(AsFd::as_fd))
        .collect();
    // The sandbox's supervisor may still hold the streams of its caller.
    let dropped =
        penfold_sys::descriptors::keep_only(&kept).and_then(|()| penfold_sys::descriptors::drop_streams());
    drop(kept);
    drop(ipc);
    let refused = match dropped {
        Err(error) => format!("cannot let go of the supervisor's descriptors: {error}"),
        Ok(()) => match prepare(parts, requested) {
            Ok(parts) => supervise(parts),
            Err(reason) => reason,
        },
    };
    if let Some(cell) = cell {
        // Without a report, the supervisor removes the directory of an exec that could not start.
        cell.store(SeenEnd { exit: None, cause: Cause::StartFailed, verified: true });
    }
    if let Ok(answers) = answers {
        let _ = wire::offer_message(&answers, &Answer::Refused(refused));
    }
    penfold_sys::fork::exit_now(1)
}

fn prepare(sandbox: &SandboxParts, requested: RequestedExec) -> Result<SandboxParts, String> {
    let described =
        read_exec_spec(requested.spec).map_err(|error| format!("cannot read what to run: {error}"))?;
    let terminal = described.terminal;
    let recorded = described.recorded.clone();
    let level = if sandbox.level == Level::Pidns { Level::Subreaper } else { sandbox.level };
    let ExecProgram { spec, mut program, identity } =
        exec_program(sandbox, described, requested.leader, level)?;
    let is_jailed = program.has_jail();
    let (stdio, kind) = match requested.stdio {
        ExecStdio::Given([input, output, error]) => {
            (OwnStdio { input, output, error, terminal }, SandboxKind::Exec)
        }
        ExecStdio::Recorded(plan) => {
            let recorded = recorded.ok_or("the description of a recorded exec lacks its settings")?;
            let (stdio, record) = record_exec(plan, &spec, recorded, terminal)
                .map_err(|error| format!("cannot record the exec: {}", penfold_state::error_chain(&error)))?;
            (stdio, SandboxKind::RecordedExec(Box::new(record)))
        }
    };
    if let Some(identity) = identity {
        identity::give_stdio(&stdio, identity);
        identity::set_user(&mut program, identity)?;
    }
    program.own_session(stdio);
    let leaf = requested.leaf.as_deref().map(make_leaf).transpose()?;
    let setup = Setup {
        spec,
        program,
        stop_program: None,
        channel: requested.socket,
        launcher: None,
        owner: None,
        owner_pid: None,
        owner_id: None,
        own_session: true,
        session: 0,
        group: 0,
        keys: false,
        scope: sandbox.setup.scope.clone(),
        caller_cgroup: Vec::new(),
        scratch: None,
        idle: sandbox.setup.idle,
        began: Instant::now(),
    };
    // Before setns(2): afterwards `/proc` shows another pid namespace.
    let mut parts = SandboxParts::for_exec(setup, leaf, level, kind)?;
    let init = requested.init.filter(|_| !is_jailed);
    if let (SandboxKind::RecordedExec(record), true, None) =
        (&mut parts.kind, init.is_some() || is_jailed, &parts.leaf)
    {
        record.keep_outer_proc();
    }
    if let Some(init) = init {
        enter_namespaces(&mut parts, init)?;
    } else if is_jailed && parts.leaf.is_none() {
        enter_pid_namespace_of_jail(&mut parts)?;
    }
    Ok(parts)
}

/// Enters the namespaces of our init, so that later children are born there.
///
/// Without a leaf, a process inside the namespace becomes the exec supervisor, and this one waits for it. The kernel
/// reparents orphans only to a subreaper in their own pid namespace (`find_new_reaper()`).
fn enter_namespaces(parts: &mut SandboxParts, init: Pid) -> Result<(), String> {
    let refused = |error: &dyn std::fmt::Display| format!("cannot enter the pid namespace: {error}");
    let init = pidfd_open(init, PidfdFlags::empty()).map_err(|error| refused(&error))?;
    let enter = |spaces| {
        rustix::thread::move_into_thread_name_spaces(init.as_fd(), spaces).map_err(|error| refused(&error))
    };
    let mut spaces = ThreadNameSpaceType::PROCESS_ID;
    if parts.setup.spec.has_own_ipc() {
        spaces |= ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION;
    }
    if !rustix::process::geteuid().is_root() {
        spaces |= ThreadNameSpaceType::USER;
    }
    // Entering a mount namespace changes the working directory to its root.
    let place = rustix::process::getcwd(Vec::new());
    let enter_mounts = |spaces| {
        enter(spaces | ThreadNameSpaceType::MOUNT)?;
        // A directory that was removed meanwhile cannot be entered.
        let _ = place.as_ref().map(rustix::process::chdir);
        Ok(())
    };
    if parts.leaf.is_some() {
        return enter_mounts(spaces);
    }
    enter(spaces)?;
    match fork() {
        Ok(ForkSide::Child) => {
            // Only in the child: in the namespace's `/proc` a process outside of that pid namespace has no entry.
            enter_mounts(ThreadNameSpaceType::empty())?;
            let own = std::fs::read_link("/proc/self").ok();
            if own.is_none_or(|own| own.as_os_str() != getpid().as_raw_nonzero().to_string().as_str()) {
                return Err("the pid namespace has no /proc of its own".to_owned());
            }
            parts.proc = Some(ProcFs::open().map_err(|error| format!("cannot read /proc: {error}"))?);
            Ok(())
        }
        Ok(ForkSide::Parent(pid)) => wait_for_exec_supervisor(pid),
        Err(error) => Err(format!("cannot fork: {error}")),
    }
}

/// Lets a process in the pid namespace of the jail become the exec supervisor, and waits for it.
///
/// Without a leaf, orphans of the command would otherwise become children of the jail's first process. Of the jail's other
/// namespaces the supervisor enters none: it keeps more rights than the jail's processes have, so these cannot trace it.
fn enter_pid_namespace_of_jail(parts: &mut SandboxParts) -> Result<(), String> {
    let refused = |error: &dyn std::fmt::Display| format!("cannot enter the jail of the sandbox: {error}");
    let jail = parts.setup.program.jail_mut().ok_or_else(|| refused(&"it is not open"))?;
    jail.enter_pid_namespace().map_err(|error| refused(&error))?;
    match fork().map_err(|error| refused(&error))? {
        ForkSide::Child => {
            let proc = rustix::fs::openat(jail.proc(), ".", OPEN_DIRECTORY, Mode::empty());
            let proc = proc.map_err(io::Error::from).and_then(ProcFs::at).map_err(|error| refused(&error))?;
            parts.proc = Some(proc);
            Ok(())
        }
        ForkSide::Parent(pid) => wait_for_exec_supervisor(pid),
    }
}

const OPEN_DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Forwards SIGTERM to the exec supervisor until it exits, then exits.
fn wait_for_exec_supervisor(pid: Pid) -> ! {
    let _ = penfold_sys::descriptors::keep_only(&[]);
    let opened = signals::open_signals();
    let supervisor = pidfd_open(pid, PidfdFlags::empty());
    while let Ok(None) = child::reap_child(pid) {
        let (Ok(signals), Ok(supervisor)) = (&opened, &supervisor) else { break };
        let _ = poll_or_pause(&mut [PollFd::new(signals, PollFlags::IN)], None);
        signals::forward_term(signals, supervisor);
    }
    penfold_sys::fork::exit_now(0)
}

fn make_leaf(path: &Path) -> Result<Leaf, String> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let place = LeafPlace::at(path.parent().unwrap_or(path)).map_err(|error| error.to_string())?;
    Leaf::create(&place, name).map_err(|error| error.to_string())
}
