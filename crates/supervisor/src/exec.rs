//! A command that is put into a running sandbox: a process of ours of its own looks after it, as after a sandbox in the
//! sandbox.
//!
//! It is a child of the supervisor, a subreaper, and ends its command's tree and nothing else. When the sandbox ends, it
//! ends with all that are in it.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penfold_cgroup::{Leaf, Place};
use penfold_process::{Pid, ProcFs, ProcessId};
use penfold_state::events::What;
use penfold_state::record::shortened;
use penfold_state::state::{self, Word, now_ms};
use penfold_state::{Contain, ExecSpec, OwnerExit, Spec};
use penfold_sys::child;
use penfold_sys::launch::Apart;
use penfold_sys::signal::{self, SignalSet};
use penfold_sys::{Forked, fork};
use penfold_teardown::{Ended, Level};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::SealFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, Signal, getpid, pidfd_open};
use rustix::thread::ThreadNameSpaceType;

use crate::environment::{self, Inherited};
use crate::held::Held;
use crate::inner;
use crate::poll::poll;
use crate::setup::Setup;
use crate::signals;
use crate::wire::{self, Answer, Exec};

/// A larger description of a command is refused. The kernel takes no more than 6 MiB of arguments and environment, of
/// which each byte is up to four here.
const LARGEST: u64 = 32 << 20;
/// How many may run at a time: `state.json`, which names them all, is read up to a size.
const MOST_RUNNING: usize = 2048;
/// A larger number of an exec is none of ours.
const MOST: u32 = 1 << 30;

/// The commands that were put into a sandbox.
#[derive(Default)]
pub(crate) struct Execs {
    running: Vec<Running>,
    /// How many there were.
    count: u32,
    /// The processes that look after them, and once the sandbox is being ended those that did so then.
    keepers: Vec<ProcessId>,
    /// Their members when the sandbox was ended.
    members: HashSet<i32>,
    ending: bool,
}

struct Running {
    state: state::Exec,
    pidfd: OwnedFd,
    leaf: Option<PathBuf>,
}

impl Execs {
    /// How many run.
    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// What tells that one has ended.
    pub(crate) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.running.iter().map(|running| running.pidfd.as_fd())
    }

    /// For those who look.
    pub(crate) fn states(&self) -> Vec<state::Exec> {
        self.running.iter().map(|running| running.state.clone()).collect()
    }

    /// The sandbox is being ended.
    pub(crate) fn ends(&mut self) {
        if !std::mem::replace(&mut self.ending, true) {
            self.note_members();
        }
    }

    /// Adds one that runs.
    fn register(&mut self, running: Running) {
        self.keepers.push(running.state.keeper);
        self.running.push(running);
    }

    /// Notes who belongs to them, before the end of the sandbox, or of its supervisor, makes orphans of all.
    fn note_members(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let Ok(mut proc) = ProcFs::open() else { return };
        let mut open: Vec<Pid> = self.running.iter().map(|running| running.state.keeper.pid).collect();
        let mut found = Vec::new();
        for leaf in self.running.iter().filter_map(|running| running.leaf.as_deref()) {
            if let Ok(Some(leaf)) = Leaf::open(leaf)
                && leaf.processes(&mut found).is_ok()
            {
                open.append(&mut found);
            }
        }
        while let Some(pid) = open.pop() {
            if self.members.insert(pid.as_raw_nonzero().get()) && proc.children(pid, &mut found).is_ok() {
                open.append(&mut found);
            }
        }
    }

    /// Those who looked after them are ours and no members, and nobody whom they looked after was a stray.
    pub(crate) fn vouch(&self, ended: &mut Vec<Ended>) {
        let is_keeper = |ended: &Ended| {
            let mut keepers = self.keepers.iter();
            keepers.any(|id| id.pid.as_raw_pid() == ended.pid && id.start.0 == ended.start_time)
        };
        ended.retain(|ended| !is_keeper(ended));
        for ended in ended.iter_mut().filter(|ended| self.members.contains(&ended.pid)) {
            (ended.stray, ended.why, ended.command) = (false, None, None);
        }
    }

    /// The next number, and the leaf that goes with it below that of the sandbox. A supervisor before this one may have
    /// used some.
    fn number(&mut self, sandbox: Option<&Path>) -> (u32, Option<PathBuf>) {
        loop {
            self.count = self.count.saturating_add(1);
            let leaf = sandbox.map(|path| path.join(format!("exec-{}", self.count)));
            let taken = leaf.as_deref().is_some_and(|leaf| leaf.symlink_metadata().is_ok());
            if !taken || self.count > MOST {
                return (self.count, leaf);
            }
        }
    }

    /// Ends one politely. False if there is none of this number.
    pub(crate) fn stop(&self, number: u32) -> bool {
        self.running.iter().any(|running| {
            running.state.number == number
                && rustix::process::pidfd_send_signal(&running.pidfd, Signal::TERM).is_ok()
        })
    }

    /// Forgets those whose supervisor has exited. One that was killed could not end its tree: then its leaf does, and what
    /// is not in there ends with the sandbox.
    pub(crate) fn bury(&mut self) {
        self.running.retain(|running| {
            let mut fds = [PollFd::new(&running.pidfd, PollFlags::IN)];
            let over = poll(&mut fds, Some(&Timespec::default())) != Ok(0);
            if over && let Some(Ok(Some(leaf))) = running.leaf.as_deref().map(Leaf::open) {
                let _ = leaf.kill();
            }
            // The report of the end leaves out those who ended with it.
            if over && !self.ending {
                self.keepers.retain(|keeper| *keeper != running.state.keeper);
            }
            !over
        });
    }
}

/// Starts a command in the sandbox; from then on the client talks to who looks after it. `init` is ours in the pid
/// namespace, if there is one.
///
/// # Errors
/// Why it is refused, in a sentence.
pub(crate) fn begin(
    held: &mut Held,
    client: u64,
    exec: Exec,
    fds: Vec<OwnedFd>,
    init: Option<Pid>,
) -> Result<(), String> {
    let Ok([spec, input, output, error]) = <[OwnedFd; 4]>::try_from(fds) else {
        return Err("an exec needs its description and three standard descriptors".to_owned());
    };
    let sandbox = leaf_of(held);
    let desk = held.desk.as_mut().ok_or("it runs in the foreground")?;
    if desk.execs.running() >= MOST_RUNNING {
        return Err(format!("{MOST_RUNNING} commands run in it already"));
    }
    let (mut proc, gate) = tools().map_err(|error| format!("cannot look after a command: {error}"))?;
    let socket = desk.part_with(client).ok_or("who asked for it is gone")?;
    if has_left(&socket) {
        return Err("who asked for it is gone".to_owned());
    }
    let (number, leaf) = desk.execs.number(sandbox.as_deref());
    let command = shortened(exec.command);
    let wanted = Wanted { spec, stdio: [input, output, error], socket, leaf: leaf.clone(), init };
    let refused = match fork() {
        Ok(Forked::Child) => {
            if !gate.await_open() {
                penfold_sys::fork::exit_now(1);
            }
            look_after(held, wanted)
        }
        Ok(Forked::Parent(pid)) => match identify(&mut proc, pid) {
            Ok((keeper, pidfd)) => {
                desk.happened([What::Exec { number, command: command.clone() }]);
                let command = state::brief(command);
                let state = state::Exec { number, command, keeper, started_at_ms: now_ms() };
                desk.execs.register(Running { state, pidfd, leaf });
                // Before it begins: who takes the place of a supervisor that is killed then knows whose those are.
                desk.say(Word::Running, held.level, &held.missing);
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

/// Takes on what a supervisor that was killed had put into the sandbox. What it wrote down is believed of our own
/// children only.
pub(crate) fn recall(held: &mut Held) {
    let sandbox = leaf_of(held);
    let (Some(desk), Ok(mut proc)) = (&mut held.desk, ProcFs::open()) else { return };
    for state in desk.written_execs().into_iter().filter(|state| state.number < MOST) {
        let pid = state.keeper.pid;
        // In this order: an unreaped child of ours keeps its number.
        let stat = proc.stat(pid).ok().flatten();
        if stat.is_none_or(|stat| stat.id() != state.keeper || stat.parent != Some(getpid())) {
            continue;
        }
        if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) {
            let leaf = sandbox.as_ref().map(|path| path.join(format!("exec-{}", state.number)));
            desk.execs.count = desk.execs.count.max(state.number);
            desk.execs.register(Running { state, pidfd, leaf });
        }
    }
    desk.execs.note_members();
}

/// The leaf of the sandbox, if those of its execs are made below it.
fn leaf_of(held: &Held) -> Option<PathBuf> {
    held.leaf_path.clone().filter(|_| held.level != Level::Subreaper)
}

struct Wanted {
    spec: OwnedFd,
    stdio: [OwnedFd; 3],
    socket: OwnedFd,
    leaf: Option<PathBuf>,
    init: Option<Pid>,
}

/// The life of the process that looks after one command.
fn look_after(held: &mut Held, wanted: Wanted) -> ! {
    let answers = wanted.socket.try_clone();
    let kept: Vec<BorrowedFd<'_>> =
        wanted.stdio.iter().chain([&wanted.spec, &wanted.socket]).chain(&answers).map(AsFd::as_fd).collect();
    let refused = match penfold_sys::descriptors::keep_only(&kept) {
        Err(error) => format!("cannot let go of the supervisor's descriptors: {error}"),
        Ok(()) => match prepare(held, wanted) {
            Ok(held) => inner::run(held, None),
            Err(reason) => reason,
        },
    };
    if let Ok(answers) = answers {
        let _ = wire::offer(&answers, &Answer::Refused(refused));
    }
    penfold_sys::fork::exit_now(1)
}

fn prepare(sandbox: &Held, wanted: Wanted) -> Result<Held, String> {
    let spec = read(wanted.spec).map_err(|error| format!("cannot read what to run: {error}"))?;
    let terminal = spec.terminal;
    let level = if sandbox.level == Level::Pidns { Level::Subreaper } else { sandbox.level };
    let spec = of_sandbox(&sandbox.setup.spec, spec, level)?;
    let scratch = sandbox.setup.scratch.as_deref();
    let inherited = Inherited { mask: SignalSet::empty(), child_ignored: false };
    let mut program = environment::program(&spec, scratch, &inherited).map_err(|error| error.to_string())?;
    let [input, output, error] = wanted.stdio;
    program.apart(Apart { input, output, error, terminal });
    let leaf = wanted.leaf.as_deref().map(make_leaf).transpose()?;
    let setup = Setup {
        spec,
        program,
        channel: wanted.socket,
        front: None,
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
    let mut held = Held::for_exec(setup, leaf, level)?;
    if let Some(init) = wanted.init {
        go_inside(&mut held, init)?;
    }
    Ok(held)
}

/// Enters the namespaces of our init, so that what is started from now on is born there.
///
/// Without a leaf a process inside looks after the command, and this one only stands for it: orphans come to a subreaper
/// that is inside, never to one that is not (`find_new_reaper` of the kernel).
fn go_inside(held: &mut Held, init: Pid) -> Result<(), String> {
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
    if held.leaf.is_some() {
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
            held.proc = Some(ProcFs::open().map_err(|error| format!("cannot read /proc: {error}"))?);
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
    let keeper = pidfd_open(pid, PidfdFlags::empty());
    while let Ok(None) = child::reap(pid) {
        let (Ok(signals), Ok(keeper)) = (&opened, &keeper) else { break };
        let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], None);
        signals::pass_on_wishes(signals, keeper);
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
