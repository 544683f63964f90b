//! A command that is put into a running sandbox: a process of ours of its own looks after it, as after a sandbox in the
//! sandbox.
//!
//! It is a child of the supervisor, a subreaper, and ends its command's tree and nothing else. When the sandbox ends, it
//! ends with all that are in it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penfold_cgroup::{Leaf, Place};
use penfold_process::{Pid, ProcFs, ProcessId};
use penfold_state::events::EventKind;
use penfold_state::intent::shortened;
use penfold_state::state::{self, Status};
use penfold_state::time::now_ms;
use penfold_state::{Contain, ExecSpec, OwnerExit, Spec};
use penfold_sys::child;
use penfold_sys::launch::OwnStdio;
use penfold_sys::signal::{self, SignalSet};
use penfold_sys::{Forked, fork};
use penfold_teardown::Level;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::SealFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::thread::ThreadNameSpaceType;

use crate::environment::{self, Inherited};
use crate::execs::Running;
use crate::poll::poll;
use crate::prepared::Prepared;
use crate::setup::Setup;
use crate::signals;
use crate::wire::{self, Answer, Exec};

/// A larger description of a command is refused. The kernel takes no more than 6 MiB of arguments and environment, of
/// which each byte is up to four here.
const LARGEST: u64 = 32 << 20;
/// How many may run at a time: `state.json`, which names them all, is read up to a size.
const MOST_RUNNING: usize = 2048;

/// The request of a client for a command in the sandbox.
pub(crate) struct ExecRequest {
    /// The number of the client.
    pub(crate) client: u64,
    /// What it said of the command.
    pub(crate) exec: Exec,
    /// What came with that: the description of the command and three standard descriptors.
    pub(crate) fds: Vec<OwnedFd>,
}

/// Starts a command in the sandbox; from then on the client talks to who looks after it. `init` is ours in the pid
/// namespace, if there is one; `supervise` is the life of who looks after a command.
///
/// # Errors
/// Why it is refused, in a sentence.
pub(crate) fn begin(
    prepared: &mut Prepared,
    request: ExecRequest,
    init: Option<Pid>,
    supervise: fn(Prepared) -> !,
) -> Result<(), String> {
    let ExecRequest { client, exec, fds } = request;
    let Ok([spec, input, output, error]) = <[OwnedFd; 4]>::try_from(fds) else {
        return Err("an exec needs its description and three standard descriptors".to_owned());
    };
    let sandbox = prepared.leaf_of_execs();
    let detached = prepared.detached.as_mut().ok_or("it runs in the foreground")?;
    if detached.execs.running() >= MOST_RUNNING {
        return Err(format!("{MOST_RUNNING} commands run in it already"));
    }
    let (mut proc, gate) = tools().map_err(|error| format!("cannot look after a command: {error}"))?;
    let socket = detached.control.part_with(client).ok_or("who asked for it is gone")?;
    if has_left(&socket) {
        return Err("who asked for it is gone".to_owned());
    }
    let (number, leaf) = detached.execs.number(sandbox.as_deref());
    let command = shortened(exec.command);
    let wanted = RequestedExec { spec, stdio: [input, output, error], socket, leaf: leaf.clone(), init };
    let refused = match fork() {
        Ok(Forked::Child) => {
            if !gate.await_open() {
                penfold_sys::fork::exit_now(1);
            }
            look_after(prepared, wanted, supervise)
        }
        Ok(Forked::Parent(pid)) => match identify(&mut proc, pid) {
            Ok((supervisor, pidfd)) => {
                detached.happened([EventKind::Exec { number, command: command.clone() }]);
                let command = state::brief(command);
                let state = state::Exec { number, command, supervisor, started_at_ms: now_ms() };
                detached.execs.register(Running { state, pidfd, leaf });
                // Before it begins: who takes the place of a supervisor that is killed then knows whose those are.
                detached.say(Status::Running, prepared.level, &prepared.missing);
                let opened = gate.open();
                penfold_sys::crash_point!("exec-begun");
                opened.err().map(|error| format!("cannot begin: {error}"))
            }
            Err(error) => Some(format!("cannot look after it: {error}")),
        },
        Err(error) => Some(format!("cannot fork: {error}")),
    };
    if let Some(reason) = refused {
        let _ = wire::offer(&wanted.socket, &Answer::Refused(reason));
    }
    Ok(())
}

/// What is needed to know who looks after a command. Before the fork: descriptors may be used up.
fn tools() -> io::Result<(ProcFs, Gate)> {
    Ok((ProcFs::open()?, Gate::new()?))
}

/// Who it is, and a handle to it.
fn identify(proc: &mut ProcFs, pid: Pid) -> io::Result<(ProcessId, OwnedFd)> {
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let stat = proc.stat(pid)?.ok_or(io::ErrorKind::NotFound)?;
    Ok((stat.id(), pidfd))
}

/// Where a child waits until it is known: one that is not would be counted, shown and ended by nobody.
struct Gate {
    wait: OwnedFd,
    open: OwnedFd,
}

impl Gate {
    fn new() -> io::Result<Gate> {
        let (wait, open) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok(Gate { wait, open })
    }

    /// Lets the child go on.
    fn open(self) -> io::Result<()> {
        rustix::io::write(&self.open, &[1])?;
        Ok(())
    }

    /// Waits in the child. False when the parent has given up, or was killed.
    fn await_open(self) -> bool {
        drop(self.open);
        rustix::io::retry_on_intr(|| rustix::io::read(&self.wait, &mut [0; 1])) == Ok(1)
    }
}

/// Whether who asked is gone, and was perhaps told that nothing was started: a supervisor can be held up.
fn has_left(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

struct RequestedExec {
    spec: OwnedFd,
    stdio: [OwnedFd; 3],
    socket: OwnedFd,
    leaf: Option<PathBuf>,
    init: Option<Pid>,
}

/// The life of the process that looks after one command.
fn look_after(prepared: &mut Prepared, wanted: RequestedExec, supervise: fn(Prepared) -> !) -> ! {
    let answers = wanted.socket.try_clone();
    let kept: Vec<BorrowedFd<'_>> =
        wanted.stdio.iter().chain([&wanted.spec, &wanted.socket]).chain(&answers).map(AsFd::as_fd).collect();
    let refused = match penfold_sys::descriptors::keep_only(&kept) {
        Err(error) => format!("cannot let go of the supervisor's descriptors: {error}"),
        Ok(()) => match prepare(prepared, wanted) {
            Ok(prepared) => supervise(prepared),
            Err(reason) => reason,
        },
    };
    if let Ok(answers) = answers {
        let _ = wire::offer(&answers, &Answer::Refused(refused));
    }
    penfold_sys::fork::exit_now(1)
}

fn prepare(sandbox: &Prepared, wanted: RequestedExec) -> Result<Prepared, String> {
    let spec = read(wanted.spec).map_err(|error| format!("cannot read what to run: {error}"))?;
    let terminal = spec.terminal;
    let level = if sandbox.level == Level::Pidns { Level::Subreaper } else { sandbox.level };
    let spec = of_sandbox(&sandbox.setup.spec, spec, level)?;
    let scratch = sandbox.setup.scratch.as_deref();
    let inherited = Inherited { mask: SignalSet::empty(), child_ignored: false };
    let mut program = environment::program(&spec, scratch, &inherited).map_err(|error| error.to_string())?;
    let [input, output, error] = wanted.stdio;
    program.apart(OwnStdio { input, output, error, terminal });
    let leaf = wanted.leaf.as_deref().map(make_leaf).transpose()?;
    let setup = Setup {
        spec,
        program,
        channel: wanted.socket,
        launcher: None,
        owner: None,
        owner_id: None,
        apart: true,
        session: 0,
        group: 0,
        keys: false,
        scratch: None,
        idle: sandbox.setup.idle,
        began: Instant::now(),
    };
    // Before the process changes the namespace that it sees.
    let mut prepared = Prepared::for_exec(setup, leaf, level)?;
    if let Some(init) = wanted.init {
        go_inside(&mut prepared, init)?;
    }
    Ok(prepared)
}

/// Enters the namespaces of our init, so that what is started from now on is born there.
///
/// Without a leaf a process inside looks after the command, and this one only stands for it: orphans come to a subreaper
/// that is inside, never to one that is not (`find_new_reaper` of the kernel).
fn go_inside(prepared: &mut Prepared, init: Pid) -> Result<(), String> {
    let refused = |error: &dyn std::fmt::Display| format!("cannot enter the pid namespace: {error}");
    let init = pidfd_open(init, PidfdFlags::empty()).map_err(|error| refused(&error))?;
    let enter = |spaces| {
        rustix::thread::move_into_thread_name_spaces(init.as_fd(), spaces).map_err(|error| refused(&error))
    };
    let mut spaces = ThreadNameSpaceType::PROCESS_ID;
    if !rustix::process::geteuid().is_root() {
        spaces |= ThreadNameSpaceType::USER;
    }
    // To enter mounts is to stand at their root.
    let place = rustix::process::getcwd(Vec::new());
    let enter_mounts = |spaces| {
        enter(spaces | ThreadNameSpaceType::MOUNT)?;
        // One that was removed meanwhile is nowhere in there.
        let _ = place.as_ref().map(rustix::process::chdir);
        Ok(())
    };
    if prepared.leaf.is_some() {
        return enter_mounts(spaces);
    }
    enter(spaces)?;
    match fork() {
        Ok(Forked::Child) => {
            // Not before: in a /proc of the namespace who is outside does not find itself.
            enter_mounts(ThreadNameSpaceType::empty())?;
            let own = std::fs::read_link("/proc/self").ok();
            if own.is_none_or(|own| own.as_os_str() != getpid().as_raw_nonzero().to_string().as_str()) {
                return Err("the pid namespace has no /proc of its own".to_owned());
            }
            prepared.proc = Some(ProcFs::open().map_err(|error| format!("cannot read /proc: {error}"))?);
            Ok(())
        }
        Ok(Forked::Parent(pid)) => stand_for(pid),
        Err(error) => Err(format!("cannot fork: {error}")),
    }
}

/// Passes a wish to end on, and exits with who looks after the command.
fn stand_for(pid: Pid) -> ! {
    let _ = penfold_sys::descriptors::keep_only(&[]);
    let opened = signals::open();
    let supervisor = pidfd_open(pid, PidfdFlags::empty());
    while let Ok(None) = child::reap(pid) {
        let (Ok(signals), Ok(supervisor)) = (&opened, &supervisor) else { break };
        let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], None);
        signals::pass_on_wishes(signals, supervisor);
    }
    penfold_sys::fork::exit_now(0)
}

fn make_leaf(path: &Path) -> Result<Leaf, String> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let place = Place::at(path.parent().unwrap_or(path)).map_err(|error| error.to_string())?;
    Leaf::create(&place, name).map_err(|error| error.to_string())
}

/// A description in memory that nobody can change or make us wait for.
fn read(spec: OwnedFd) -> io::Result<ExecSpec> {
    let sealed = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK;
    if !rustix::fs::fcntl_get_seals(&spec)?.contains(sealed) {
        return Err(io::Error::other("it is not sealed"));
    }
    rustix::fs::seek(&spec, rustix::fs::SeekFrom::Start(0))?;
    let mut text = Vec::new();
    File::from(spec).take(LARGEST).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// The command as part of its sandbox: what it does not say itself is the sandbox's.
fn of_sandbox(sandbox: &Spec, exec: ExecSpec, level: Level) -> Result<Spec, String> {
    let mut environment = sandbox.environment.clone();
    for (key, value) in exec.environment {
        environment.retain(|(known, _)| *known != key);
        environment.extend(value.map(|value| (key, value)));
    }
    let signal = if exec.as_sandbox { Some(sandbox.signal) } else { signal::signal(exec.signal) };
    Ok(Spec {
        id: sandbox.id,
        name: None,
        claim: None,
        labels: BTreeMap::new(),
        command: exec.command,
        environment,
        directory: exec.directory.or_else(|| sandbox.directory.clone()),
        scratch_in: None,
        contain: if level == Level::Cgroup { Contain::Cgroup } else { Contain::Subreaper },
        timeout: exec.timeout_ms.map(Duration::from_millis),
        signal: signal.ok_or("there is no such signal")?,
        grace: Duration::from_millis(exec.grace_ms),
        patience: sandbox.patience,
        on_owner_exit: if exec.detached { OwnerExit::Keep } else { OwnerExit::Kill },
        state_root: sandbox.state_root.clone(),
        report: None,
        stop_on_interrupt: false,
        report_is_shared: false,
        detach: None,
    })
}
