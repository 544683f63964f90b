//! Readiness: waits until the command is ready, and ends a sandbox that is not ready in time.

mod probe;
mod prober;
mod taken;

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use penfold_control::ports::is_in_this_network;
use penfold_control::{EndLimits, EndMethod, Resolver, SandboxRef, StopResult, SupervisorClient};
use penfold_request::value::{Exact, signal_name};
use penfold_state::log::{LogEntry, LogPosition, LogReader};
use penfold_state::state::CommandExit;
use penfold_state::time::now_ms;
use penfold_state::{Files, ReadyPipe, Spec, cause_word};
use penfold_sys::signal::SignalFd;
use penfold_teardown::Cause;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;

use self::probe::ProbeKind;
use self::prober::{Probed, Prober, has_ended};
use crate::caller::{Explainer, Warning};
use crate::error::{LaunchError, LaunchErrorKind, OrFail as _, Remains};

pub use self::probe::{Probe, ProbeError, parse_probe};

/// The time to become ready without `--ready-timeout`.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// The interval at which the end of the sandbox is looked for. With a connection, the supervisor reports it earlier.
const LOOK: Duration = Duration::from_millis(100);
const LOOK_BLIND: Duration = Duration::from_millis(20);
/// The time in which a supervisor greets; without a connection, the record is looked at more often.
const GREETING: Duration = Duration::from_secs(1);
/// The time in which a sandbox ends whose command has closed its descriptor by exiting.
const CLOSED: Duration = Duration::from_millis(500);
/// The time of a wait that is longer than the clock can count.
const FAR: Duration = Duration::from_hours(24 * 365);
/// The lines of the log that an error has.
const LAST_LINES: u64 = 10;
/// The signals that end a sandbox that is not ready yet.
const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

impl Probe {
    /// Makes the pipe over which the command says that it is ready, if the probe needs one.
    pub(crate) fn pipe(&self) -> Result<Option<ReadyPipe>, LaunchError> {
        let ProbeKind::Descriptor(number) = self.kind else { return Ok(None) };
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).or_fail("cannot make a pipe for `--ready`")?;
        Ok(Some(ReadyPipe { write: Some(write), number, read }))
    }
}

/// What to wait for.
pub(crate) struct Wait {
    probe: Probe,
    timeout: Duration,
    /// The pipe from the command.
    pipe: Option<OwnedFd>,
    /// Whether an end before the sandbox is ready leads to the next life: this one is a restart by policy.
    is_restart: bool,
}

impl Wait {
    /// Describes the wait for a new sandbox.
    pub(crate) fn of(probe: Probe, timeout: Duration, spec: &Spec) -> Result<Wait, LaunchError> {
        let pipe = spec.detach.as_ref().and_then(|detach| detach.ready_pipe.as_ref());
        let pipe = pipe.map(|pipe| pipe.read.try_clone()).transpose();
        let pipe = pipe.or_fail("cannot make a pipe for `--ready`")?;
        let life = spec.detach.as_ref().and_then(|detach| detach.life.as_ref());
        Ok(Wait { probe, timeout, pipe, is_restart: life.is_some_and(|life| life.failures > 0) })
    }
}

/// Why a sandbox is not ready.
enum NotReady {
    /// The time is over.
    Late,
    /// The sandbox or its command has ended, in this way if known.
    Ended(Option<CommandExit>),
    /// The probe can never succeed.
    Never(String),
    /// This process got a signal.
    Signalled(i32),
}

/// Waits until a detached sandbox is ready. If it is not ready in time, ends it.
///
/// `signals` are those of this process, which are blocked.
pub(crate) fn await_ready(
    wait: &Wait,
    id: &str,
    root: &Path,
    signals: &SignalFd,
    explainer: &mut dyn Explainer,
) -> Result<(), LaunchError> {
    let began = Instant::now();
    // If this process stayed a subreaper, it would adopt the members of a sandbox whose supervisors die.
    let _ = rustix::process::set_child_subreaper(None);
    let resolver = Resolver::new(root);
    let Ok(known) = resolver.resolve(id) else {
        return Err(failure(id, wait, &NotReady::Ended(None), ""));
    };
    let Some(files) = known.record.clone() else {
        return Err(failure(id, wait, &NotReady::Ended(None), ""));
    };
    let last = Arc::new(Mutex::new(String::new()));
    let prober = Prober {
        resolver: resolver.again(),
        known: known.clone(),
        files: files.clone(),
        deadline: began.checked_add(wait.timeout).unwrap_or(began + FAR),
        pipe: wait.pipe.as_ref().and_then(|pipe| pipe.try_clone().ok()),
        last: Arc::clone(&last),
    };
    let result = match Watch::begin(prober, wait.probe.clone(), &files) {
        Ok(watch) => watch.wait(signals),
        Err(error) => Err(NotReady::Never(error.to_string())),
    };
    let Err(reason) = result else {
        if let Err(error) = files.note_ready(now_ms())
            && !has_ended(&files)
        {
            explainer.warn(&Warning::ReadyNotNoted { id: id.to_owned(), error: error.to_string() });
        }
        return Ok(());
    };
    if wait.is_restart && matches!(reason, NotReady::Ended(_)) {
        return Ok(());
    }
    let last = last.lock().map(|last| last.clone()).unwrap_or_default();
    let mut failure = failure(id, wait, &reason, &last);
    let may_want_port = match reason {
        NotReady::Ended(_) => last_output(&files)
            .is_some_and(|output| taken::tells_of_a_port(&String::from_utf8_lossy(&output))),
        NotReady::Late | NotReady::Never(_) => is_in_this_network(&resolver, &known),
        NotReady::Signalled(_) => false,
    };
    if may_want_port && let Some(holder) = taken::describe_holder(&wait.probe, &resolver, &known) {
        failure.sentence = format!("{}; {holder}", failure.sentence);
    }
    Err(end(failure, &resolver, &known, &files))
}

/// A sandbox that is being probed.
struct Watch<'a> {
    files: &'a Files,
    /// The life that is probed.
    life: u32,
    client: Option<SupervisorClient>,
    thread: Option<JoinHandle<Probed>>,
    /// Readable once the thread is done.
    done: OwnedFd,
    deadline: Instant,
}

impl Watch<'_> {
    /// Starts the thread that probes.
    fn begin(prober: Prober, probe: Probe, files: &Files) -> std::io::Result<Watch<'_>> {
        let (done, write) = pipe_with(PipeFlags::CLOEXEC)?;
        let deadline = prober.deadline;
        let thread = std::thread::Builder::new().name("probe".to_owned()).spawn(move || {
            let result = prober.run(&probe);
            drop(write);
            result
        })?;
        let client = SupervisorClient::connect(files, GREETING).ok();
        Ok(Watch { files, life: files.life(), client, thread: Some(thread), done, deadline })
    }

    fn wait(mut self, signals: &SignalFd) -> Result<(), NotReady> {
        let mut never = None;
        loop {
            let is_done = self.poll(signals);
            while let Ok(Some(signalled)) = signals.take() {
                if ENDING.iter().any(|ending| ending.as_raw() == signalled.signal) {
                    return Err(NotReady::Signalled(signalled.signal));
                }
            }
            let exited = self.files.exited().ok().flatten();
            if exited.is_some() || has_ended(self.files) || self.files.life() != self.life {
                return Err(NotReady::Ended(exited));
            }
            if is_done && let Some(thread) = self.thread.take() {
                match thread.join() {
                    Ok(Probed::Ready) => return Ok(()),
                    Ok(Probed::Over) => {}
                    Ok(Probed::Never(reason)) => {
                        never = Some(reason);
                        self.deadline = self.deadline.min(Instant::now() + CLOSED);
                    }
                    Err(_) => return Err(NotReady::Never("the probe panicked".to_owned())),
                }
            }
            if Instant::now() >= self.deadline {
                return Err(never.map_or(NotReady::Late, NotReady::Never));
            }
        }
    }

    /// Waits for an event; true if the thread is done.
    fn poll(&mut self, signals: &SignalFd) -> bool {
        let look = if self.client.is_some() { LOOK } else { LOOK_BLIND };
        let left = self.deadline.saturating_duration_since(Instant::now()).min(look);
        let is_probing = self.thread.is_some();
        let done = if is_probing { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
        // A pipe without a writer is always ready.
        fds.extend(is_probing.then(|| PollFd::new(&self.done, done)));
        fds.extend(self.client.iter().map(|client| PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN)));
        let timeout = Timespec::try_from(left).ok();
        let polled = rustix::event::poll(&mut fds, timeout.as_ref()).is_ok();
        let is_ready = |fd: Option<&PollFd<'_>>| polled && fd.is_some_and(|fd| !fd.revents().is_empty());
        let is_done = is_probing && is_ready(fds.get(1));
        // The supervisor reports the end, or has died. The files tell which.
        let is_told = self.client.is_some() && is_ready(fds.last());
        drop(fds);
        if is_told {
            self.client = None;
        }
        is_done
    }
}

fn failure(id: &str, wait: &Wait, reason: &NotReady, last: &str) -> LaunchError {
    let probe = &wait.probe.text;
    let sentence = match reason {
        NotReady::Late => {
            let last = if last.is_empty() { String::new() } else { format!(": {last}") };
            format!(
                "sandbox {id} was not ready within {}, and was ended: `{probe}`{last}",
                Exact(wait.timeout)
            )
        }
        NotReady::Ended(exited) => {
            let how = exited.as_ref().map_or_else(String::new, |exited| format!(": {}", describe(exited)));
            format!("sandbox {id} ended before it was ready{how}")
        }
        NotReady::Never(why) => {
            format!("sandbox {id} can never be ready, and was ended: `{probe}`: {why}")
        }
        NotReady::Signalled(signal) => {
            let signal = signal_name(*signal);
            format!("sandbox {id} was ended before it was ready: penfold got {signal}")
        }
    };
    LaunchError::new(sentence)
}

/// How a sandbox ended, in words.
fn describe(exited: &CommandExit) -> String {
    match (exited.cause, exited.exit) {
        (Cause::Exit | Cause::Signal, Some(exit)) => {
            format!("its command ended with {exit}")
        }
        (cause, _) => format!("the cause is `{}`", cause_word(cause)),
    }
}

/// Kills the sandbox, and completes the error with the end of its log.
fn end(error: LaunchError, resolver: &Resolver, known: &SandboxRef, files: &Files) -> LaunchError {
    let before = last_output(files);
    let targets = [known.clone()];
    let result = penfold_control::end_sandboxes(
        resolver,
        &targets,
        EndMethod::Kill,
        &EndLimits::default(),
        &mut |_| (),
    )
    .pop();
    // With `--rm` the log is gone by now.
    let output = last_output(files).or(before).unwrap_or_default();
    let (error, survivors) = match result {
        Some(StopResult::Gone) => (error, Vec::new()),
        Some(StopResult::Left(survivors)) => (error.with_kind(LaunchErrorKind::Unverified), survivors),
        Some(StopResult::Failed(cause)) => {
            (error.with_kind(LaunchErrorKind::Unverified).because(cause), Vec::new())
        }
        None => (error.with_kind(LaunchErrorKind::Unverified), Vec::new()),
    };
    let id = &known.id;
    let error = error.with_remains(Remains::OfUnready { id: id.clone(), output, survivors });
    if files.has_ended() && rustix::fs::fstat(files.dir()).is_ok_and(|stat| stat.st_nlink > 0) {
        return error
            .hint(format!("`penfold logs {id}` has the whole output, `penfold rm {id}` removes the record"));
    }
    error
}

/// The last lines of the log; `None` if it cannot be read.
fn last_output(files: &Files) -> Option<Vec<u8>> {
    let from = LogPosition::Last { lines: LAST_LINES, of: None };
    let mut reader = LogReader::open(files.dir(), from).ok()?;
    let mut bytes = Vec::new();
    while let Ok(Some(entry)) = reader.next_entry() {
        if let LogEntry::Data { bytes: more, .. } = entry {
            bytes.extend_from_slice(more);
        }
    }
    Some(bytes)
}
