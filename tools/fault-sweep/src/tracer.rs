//! Follows penfold's processes from call to call, counts, and makes the chosen call fail.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use penfold_sys::child::Exit;
use penfold_sys::signal::{SignalFd, SignalSet, block_signals, set_mask};
use penfold_sys::trace::{self, SystemCall, TraceEvent};
use penfold_sys::{ForkSide, fork};
use penfold_testkit::proc;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal};

use crate::calls::{Names, ObservedCall, object};
use crate::word::{Fault, Injection, Level, Place, Verb};

const CHLD: i32 = 17;

#[derive(Debug)]
struct Traced {
    role: String,
    children: u32,
    /// Whether the process has reached `main`.
    begun: bool,
    /// The error that the current call returns.
    failing: Option<i32>,
}

/// The tracer of one case, and the parent of all started processes.
#[derive(Debug)]
pub(crate) struct Tracer {
    signals: SignalFd,
    before: SignalSet,
    place: Place,
    names: Names,
    traced: HashMap<Pid, Traced>,
    ended: HashMap<Pid, Exit>,
    aim: Option<Injection>,
    count: u32,
    armed: bool,
    /// Whether all calls are recorded.
    pub(crate) listing: bool,
    /// All calls while armed.
    pub(crate) calls: Vec<ObservedCall>,
    /// The calls that were hit.
    pub(crate) hits: Vec<ObservedCall>,
}

/// The parameters for the start of a process.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) program: &'a Path,
    pub(crate) arguments: Vec<String>,
    /// The role; a process without a role is not traced.
    pub(crate) role: Option<&'static str>,
    /// The prefix of the names of the files with its output.
    pub(crate) output: PathBuf,
    pub(crate) temporary: PathBuf,
}

impl Tracer {
    pub(crate) fn new(place: Place, aim: Option<Injection>) -> io::Result<Tracer> {
        let before = block_signals(&SignalSet::of([CHLD]))?;
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        Ok(Tracer {
            signals: SignalFd::open(&SignalSet::of([CHLD]))?,
            before,
            place,
            names: Names::new(),
            traced: HashMap::new(),
            ended: HashMap::new(),
            aim,
            count: 0,
            armed: false,
            listing: false,
            calls: Vec::new(),
            hits: Vec::new(),
        })
    }

    /// Begins to count and hit calls.
    pub(crate) fn arm(&mut self) {
        self.armed = true;
    }

    /// Ends the injection of faults.
    pub(crate) fn disarm(&mut self) {
        self.armed = false;
    }

    /// Starts a program; with a role, the program is traced from its exec on.
    pub(crate) fn start(&mut self, start: &Start<'_>) -> io::Result<Pid> {
        let (go, going) = pipe_with(PipeFlags::CLOEXEC)?;
        let out = File::create(start.output.with_extension("out"))?;
        let err = File::create(start.output.with_extension("err"))?;
        let pid = match fork()? {
            ForkSide::Child => {
                drop(going);
                self.become_program(start, &go, (out, err))
            }
            ForkSide::Parent(pid) => pid,
        };
        drop(go);
        if let Some(role) = start.role {
            trace::seize_process(pid)?;
            self.adopt(pid, role.to_owned(), false);
        }
        rustix::io::write(&going, b"g")?;
        Ok(pid)
    }

    fn become_program(&self, start: &Start<'_>, go: &OwnedFd, (out, err): (File, File)) -> ! {
        drop(set_mask(&self.before));
        if rustix::io::read(go, &mut [0_u8; 1]) == Ok(1) {
            let error = Command::new(start.program)
                .args(&start.arguments)
                .env("TMPDIR", &start.temporary)
                .stdin(Stdio::null())
                .stdout(out)
                .stderr(err)
                .exec();
            drop(writeln!(io::stderr(), "fault-sweep: {}: {error}", start.program.display()));
        }
        penfold_sys::fork::exit_now(127)
    }

    fn adopt(&mut self, pid: Pid, role: String, begun: bool) {
        self.traced.insert(pid, Traced { role, children: 0, begun, failing: None });
    }

    /// Handles all events until a condition holds or the time is over; tells whether the condition holds.
    pub(crate) fn pump(
        &mut self,
        limit: Duration,
        mut holds: impl FnMut(&Tracer) -> bool,
    ) -> io::Result<bool> {
        let deadline = Instant::now() + limit;
        let mut pause = Duration::from_millis(1);
        loop {
            self.handle_all()?;
            if holds(self) {
                return Ok(true);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let timeout = Timespec::try_from(pause.min(left)).ok();
            let mut set = [PollFd::new(&self.signals, PollFlags::IN)];
            match rustix::event::poll(&mut set, timeout.as_ref()) {
                // The condition may be a file, for which no event comes.
                Ok(0) => pause = (pause * 2).min(Duration::from_millis(20)),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn handle_all(&mut self) -> io::Result<()> {
        while self.signals.take()?.is_some() {}
        loop {
            match trace::next_trace_event() {
                Ok(Some((pid, event))) => self.handle(pid, event),
                Ok(None) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(10) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the exit of a child or of a traced process.
    pub(crate) fn exit_of(&self, pid: Pid) -> Option<Exit> {
        self.ended.get(&pid).copied()
    }

    /// Handles an event. Every error means that the process was killed meanwhile: its end is the next event.
    fn handle(&mut self, pid: Pid, event: TraceEvent) {
        match event {
            TraceEvent::Ended(exit) => {
                self.traced.remove(&pid);
                self.ended.insert(pid, exit);
            }
            TraceEvent::Stopped => drop(trace::stay_stopped(pid)),
            TraceEvent::Signal(signal) => self.resume(pid, signal),
            TraceEvent::Other => {
                if !self.traced.contains_key(&pid) {
                    self.born(pid);
                }
                self.resume(pid, 0);
            }
            TraceEvent::Execed => {
                if self.traced.get(&pid).is_some_and(|traced| !traced.begun) {
                    self.resume(pid, 0);
                } else {
                    // The command runs untraced.
                    self.traced.remove(&pid);
                    drop(trace::detach_process(pid));
                }
            }
            TraceEvent::Enter(call) => {
                self.enter(pid, &call);
                self.resume(pid, 0);
            }
            TraceEvent::Leave(_) => {
                let failing = self.traced.get_mut(&pid).and_then(|traced| traced.failing.take());
                if let Some(errno) = failing {
                    drop(trace::fail_call(pid, errno));
                }
                self.resume(pid, 0);
            }
        }
    }

    /// Sends a signal to a child of this process.
    pub(crate) fn signal(&self, pid: Pid, signal: Signal) {
        if !self.ended.contains_key(&pid) {
            // Only this process reaps the child, and has not: no other process can have the pid.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Kills all traced processes, before any of them can react to another's death.
    pub(crate) fn kill_all(&self) {
        for pid in self.traced.keys() {
            // Only this process reaps the traced processes: no other process can have these pids.
            let _ = rustix::process::kill_process(*pid, Signal::KILL);
        }
    }

    /// Tells whether no process is traced.
    pub(crate) fn is_idle(&self) -> bool {
        self.traced.is_empty()
    }

    /// Continues a process. After the only hit, calls are not traced any more, so nothing is slowed down.
    fn resume(&self, pid: Pid, signal: i32) {
        let once = self.aim.as_ref().is_some_and(|word| word.aim.number.is_some());
        let failing = self.traced.get(&pid).is_some_and(|traced| traced.failing.is_some());
        drop(if once && !self.hits.is_empty() && !failing {
            trace::run_on(pid, signal)
        } else {
            trace::go_on(pid, signal)
        });
    }

    /// Names a new process by its parent.
    fn born(&mut self, pid: Pid) {
        let parent = proc::stat(pid.as_raw_nonzero().get()).and_then(|stat| Pid::from_raw(stat.parent));
        let place = self.place;
        let armed = self.armed;
        let role = match parent.and_then(|parent| self.traced.get_mut(&parent)) {
            Some(parent) => {
                parent.children += 1;
                role(&parent.role, parent.children, place, armed)
            }
            None => "orphan".to_owned(),
        };
        self.adopt(pid, role, true);
    }

    fn enter(&mut self, pid: Pid, call: &SystemCall) {
        let Some(traced) = self.traced.get_mut(&pid) else { return };
        let name = self.names.of(call);
        // The first call of penfold's own `main`: see `entry!`.
        traced.begun |= name == "fcntl";
        if !self.armed || !traced.begun {
            return;
        }
        let number = pid.as_raw_nonzero().get();
        if self.listing {
            let seen = ObservedCall {
                role: traced.role.clone(),
                call: name.to_owned(),
                object: object(number, name, call),
            };
            self.calls.push(seen);
        }
        let Some(word) = &self.aim else { return };
        if word.aim.call != name || word.aim.role != traced.role {
            return;
        }
        if !word.aim.part.is_empty() && !object(number, name, call).contains(&word.aim.part) {
            return;
        }
        self.count += 1;
        if word.aim.number.is_some_and(|number| number != self.count) {
            return;
        }
        let seen = ObservedCall {
            role: traced.role.clone(),
            call: name.to_owned(),
            object: object(number, name, call),
        };
        self.hits.push(seen);
        match word.fault {
            // The process is stopped, and only this process reaps it: no other process can have the pid.
            Fault::Kill => {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
            Fault::Error(_, errno) => {
                if trace::skip_call(pid).is_ok() {
                    traced.failing = Some(errno);
                }
            }
        }
    }
}

/// Returns the role of the `nth` child of a penfold process.
fn role(parent: &str, nth: u32, place: Place, armed: bool) -> String {
    let detached = !matches!(place.verb, Verb::Run | Verb::RunStopped);
    match (parent, nth) {
        ("launcher", 1) if detached => "standby",
        ("launcher" | "standby", 1) => "supervisor",
        ("launcher", _) => "sweeper",
        ("supervisor", _) if place.verb == Verb::Exec && armed => "exec",
        ("supervisor", _) if place.level == Level::Pidns => "init",
        ("supervisor" | "init" | "exec", _) => "leader",
        _ => "child",
    }
    .to_owned()
}
