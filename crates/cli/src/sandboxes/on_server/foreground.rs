//! A command of a server in the foreground: its output, and the signals of this process.

use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use penfold_client::{Client, Error, Follow, LogEvent, LogFrame, Method};
use penfold_state::log::Stream;
use penfold_state::{ExitStatus, Report};
use penfold_sys::signal::{self, SignalFd, SignalSet};
use penfold_teardown::Cause;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::exit_codes;
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::text::remark::{bytes, remark};

/// The lease of a foreground sandbox: it is stopped when its client has been gone, or stopped, for this time.
pub(crate) const LEASE: Duration = Duration::from_mins(1);
/// The interval at which the client renews the lease.
const RENEWAL: Timespec = Timespec { tv_sec: 15, tv_nsec: 0 };
/// After this many signals the client gives up, and dies of the last one.
const MOST: usize = 3;

/// The signals that end the command.
const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// Waits for signals in a thread of its own: the first one stops the command, the second one kills it.
pub(crate) struct Signals {
    target: Arc<Mutex<Target>>,
}

/// The command.
#[derive(Default)]
struct Target {
    /// The path of its sandbox or exec, once known.
    path: Option<String>,
    /// The signals that came.
    came: Vec<i32>,
    /// Whether this client renews its lease.
    leased: bool,
}

impl Signals {
    /// Begins to wait, and to renew the lease if the command has one.
    pub(crate) fn watch(client: &Client, leased: bool) -> Result<Signals, Failure> {
        // A signal that the caller ignores, as nohup(1) does, stays ignored.
        let numbers = ENDING.into_iter().map(Signal::as_raw).filter(|&number| !signal::is_ignored(number));
        let set = SignalSet::of(numbers);
        // Who shows a terminal waits for it: no thread may take it.
        let _ = signal::block_signals(&SignalSet::of([Signal::WINCH.as_raw()]));
        let sentence = "cannot wait for signals";
        signal::block_signals(&set).or_fail(FailureKind::NotStarted, sentence)?;
        let came = SignalFd::open(&set).or_fail(FailureKind::NotStarted, sentence)?;
        let target = Arc::new(Mutex::new(Target { leased, ..Target::default() }));
        let (shared, client) = (Arc::clone(&target), client.again()?);
        std::thread::Builder::new()
            .spawn(move || listen(&client, &came, &shared))
            .or_fail(FailureKind::NotStarted, sentence)?;
        Ok(Signals { target })
    }

    /// Names the command. A signal that came before takes effect now.
    pub(crate) fn aim(&self, client: &Client, path: &str) {
        let mut target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        target.path = Some(path.to_owned());
        if !target.came.is_empty() {
            target.act(client);
        }
    }

    /// Dying of Ctrl-C is what breaks a loop of the caller's shell. If this process stopped the command because of it, and
    /// a signal ended the command, then that signal counts as SIGINT.
    pub(crate) fn attribute(&self, report: &mut Report) {
        let target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        let was_interrupted = target.came.first() == Some(&Signal::INT.as_raw());
        // A shell whose child was ended first exits with 128 and the signal's number.
        let shells = i32::from(exit_codes::SIGNALLED) + 1..256;
        let by_signal = match report.exit {
            Some(ExitStatus::Signal(_)) => true,
            Some(ExitStatus::Code(code)) => shells.contains(&code),
            None => false,
        };
        if was_interrupted && by_signal && matches!(report.cause, Cause::Stop | Cause::Kill) {
            report.exit = Some(ExitStatus::Signal(Signal::INT.as_raw()));
        }
    }

    /// Stops the command because nobody reads its output.
    pub(crate) fn hang_up(&self, client: &Client) {
        let target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        target.order(client, "stop", json!({ "signal": Signal::PIPE.as_raw().to_string() }));
    }
}

impl Target {
    fn act(&self, client: &Client) {
        match self.came.len() {
            0 | 1 => self.order(client, "stop", json!({})),
            _ => self.order(client, "kill", json!({})),
        }
    }

    /// Sends a request in a thread of its own: the next signal must not wait for the answer.
    fn order(&self, client: &Client, act: &'static str, body: Value) {
        let Some(path) = self.path.clone() else { return };
        let Ok(client) = client.again() else { return };
        let _ = std::thread::Builder::new().spawn(move || {
            let url = format!("{path}/{act}");
            let done: Result<Value, Error> = client.call(Method::POST, &url, &[], &body);
            match done {
                // A problem, such as survivors, is also in the end that the main thread reads. A lease is renewed again.
                Ok(_) | Err(Error::Problem(_)) => {}
                Err(_) if act == "extend" => {}
                Err(error) => drop(Failure::from(error).report(false)),
            }
        });
    }
}

fn listen(client: &Client, came: &SignalFd, shared: &Mutex<Target>) {
    loop {
        let mut fds = [PollFd::from_borrowed_fd(came.as_fd(), PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, Some(&RENEWAL));
        let taken = came.take().ok().flatten();
        let mut target = shared.lock().unwrap_or_else(PoisonError::into_inner);
        match taken {
            Some(taken) => {
                target.came.push(taken.signal);
                if target.came.len() > MOST || (target.came.len() > 1 && target.path.is_none()) {
                    signal::die_of(taken.signal);
                }
                target.act(client);
            }
            None if target.leased => {
                let lease = penfold_state::time::whole_millis(LEASE);
                target.order(client, "extend", json!({ "lease_ms": lease }));
            }
            None => {}
        }
    }
}

/// Copies the output of a command to standard output and standard error, until its end.
pub(crate) fn copy_output(client: &Client, path: &str, signals: &Signals) -> Result<(), Error> {
    let mut follow = Follow::new(client, format!("{path}/logs?follow=true"));
    copy_events(client, signals, || follow.next_event())
}

/// Copies the output in these events to standard output and standard error, until the last one.
pub(crate) fn copy_events(
    client: &Client,
    signals: &Signals,
    mut next: impl FnMut() -> Result<LogEvent, Error>,
) -> Result<(), Error> {
    let mut hung_up = false;
    loop {
        match next()? {
            LogEvent::Output(frame) => {
                if !hung_up && write(frame).is_err() {
                    hung_up = true;
                    signals.hang_up(client);
                }
            }
            LogEvent::Missed(number) => {
                remark(&format!("{} of output were overwritten before they were read", bytes(number)));
            }
            LogEvent::Lost(number) => {
                remark(&format!("{} of output were lost: the log could not be written", bytes(number)));
            }
            LogEvent::Damaged(number) => remark(&format!("{} of the log are damaged", bytes(number))),
            LogEvent::Silence | LogEvent::InputEnded => {}
            LogEvent::End(_) => return Ok(()),
        }
    }
}

fn write(frame: LogFrame) -> io::Result<()> {
    match frame.stream {
        Stream::Stdout => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(&frame.bytes())?;
            stdout.flush()
        }
        Stream::Stderr => io::stderr().lock().write_all(&frame.bytes()),
    }
}
