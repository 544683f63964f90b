//! The near end: starts ssh, and passes on streams and signals.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use penfold_sys::signal::{self, SignalFd, SignalSet};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use super::frames::{ALIVE_SECONDS, Exit, Frame, LONGEST, Start, WINDOW, take_greeting};
use super::queue::{FULL, ReadResult, give, never_block, take};
use crate::exit_codes;
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::place::SshHost;

/// The signals that are passed on.
const PASSED: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// After this many signals this process gives up, and dies of the last one.
const MOST_SIGNALS: usize = 3;
/// A far end that says nothing for this time is gone.
const SILENCE: Duration = Duration::from_secs(30);
/// How long ssh may take to end once its work is done.
const PATIENCE: Duration = Duration::from_millis(500);
/// A pipe that poll(2) calls writable takes this much at once, pipe(7).
const AT_ONCE: usize = 4096;

/// The kinds of failures.
pub(super) struct Kinds {
    /// Nothing was started there.
    pub(super) unreachable: FailureKind,
    /// The connection was lost after the start.
    pub(super) lost: FailureKind,
}

/// Becomes an ssh with a terminal of its own on the other host; returns only if that fails.
pub(super) fn on_terminal(host: &SshHost, words: &[OsString], kind: FailureKind) -> Failure {
    let texts: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let mut command = ssh(host, "-t");
    // ssh has no code for a command that died of a signal, as a verb does after Ctrl-C; a shell has one.
    let line = format!(
        "trap : INT QUIT; {} ssh-end -- {}; exit $?",
        host.program(),
        penfold_process::quote_words(texts)
    );
    command.push(format!("exec sh -c {}", penfold_process::quote_words([line])).into());
    crate::execute::program(&command, Vec::new(), Vec::new()).with_kind(kind)
}

fn ssh(host: &SshHost, terminal: &str) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["ssh".into(), terminal.into(), "-o".into(), "LogLevel=ERROR".into()];
    if let Some(port) = host.port() {
        words.extend(["-p".into(), port.to_string().into()]);
    }
    words.extend(["--".into(), host.destination().into()]);
    words
}

/// Runs a verb on the other host, with the streams of this process; returns its exit code.
pub(super) fn call(host: &SshHost, words: Vec<OsString>, input: bool, kinds: &Kinds) -> Result<u8, Failure> {
    let sentence = format!("cannot start ssh for `{host}`");
    let signals = watch_signals().or_fail(kinds.unreachable, &sentence)?;
    let mut near = Near::start(host, words, input).or_fail(kinds.unreachable, &sentence)?;
    loop {
        match near.turn(&signals) {
            Ok(None) => {}
            Ok(Some(Exit::Code(code))) => {
                near.finish(&signals);
                return Ok(code);
            }
            Ok(Some(Exit::Signal(number))) => {
                near.finish(&signals);
                signal::die_of(number);
                return Ok(exit_codes::SIGNALLED.saturating_add(u8::try_from(number).unwrap_or(0)));
            }
            Err(why) => return Err(near.failure(host, &why, kinds, &signals)),
        }
    }
}

/// Takes signals by descriptor. One that the caller ignores, as nohup(1) does, stays ignored.
fn watch_signals() -> io::Result<SignalFd> {
    let numbers = PASSED.into_iter().map(Signal::as_raw).filter(|&number| !signal::is_ignored(number));
    let set = SignalSet::of(numbers);
    signal::block_signals(&set)?;
    SignalFd::open(&set)
}

/// Why the connection is over before the verb is.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("the connection has ended")]
    Closed,
    #[error("the other host says nothing any more")]
    Silent,
    #[error(transparent)]
    Foreign(#[from] super::frames::Foreign),
}

/// This end, with its connection.
struct Near {
    child: Child,
    to: Option<OwnedFd>,
    from: OwnedFd,
    sent: Vec<u8>,
    received: Vec<u8>,
    greeted: bool,
    /// Whether standard input is still to be read.
    input: bool,
    /// The bytes of standard input that may be sent.
    window: usize,
    /// What the two outputs have not taken yet.
    outputs: [Output; 2],
    exit: Option<Exit>,
    signals: usize,
    heard: Instant,
    said: Instant,
}

#[derive(Default)]
struct Output {
    queue: Vec<u8>,
    is_closed: bool,
}

impl Near {
    fn start(host: &SshHost, words: Vec<OsString>, input: bool) -> io::Result<Near> {
        let mut command = ssh(host, "-T");
        // The shell of the other host must not stay between sshd and penfold.
        command.push(format!("exec {} ssh-end", host.program()).into());
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        // The terminal sends Ctrl-C to ssh as well, which would end the connection before the command.
        let left: Vec<i32> = [Signal::INT.as_raw(), Signal::QUIT.as_raw()]
            .into_iter()
            .filter(|&number| !signal::is_ignored(number))
            .collect();
        for &number in &left {
            signal::set_ignored(number);
        }
        let spawned =
            Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        for &number in &left {
            signal::set_default(number);
        }
        let mut child = spawned?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (Some(to), Some(from)) = (to, from) else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let (to, from) = (OwnedFd::from(to), OwnedFd::from(from));
        never_block(&to)?;
        never_block(&from)?;
        let mut sent = Vec::new();
        Frame::Start(Start { words, input }).write(&mut sent);
        let now = Instant::now();
        Ok(Near {
            child,
            to: Some(to),
            from,
            sent,
            received: Vec::new(),
            greeted: false,
            input,
            window: WINDOW,
            outputs: Default::default(),
            exit: None,
            signals: 0,
            heard: now,
            said: now,
        })
    }

    /// Waits for the next thing that happens, and acts on it; returns the exit once everything was written.
    fn turn(&mut self, signals: &SignalFd) -> Result<Option<Exit>, Lost> {
        let ready = self.wait(signals);
        if let Ok(Some(taken)) = signals.take() {
            self.count(taken.signal);
            Frame::Signal(taken.signal).write(&mut self.sent);
        }
        if self.exit.is_none() && self.has_room() {
            self.hear()?;
        }
        if ready.input {
            self.read_input();
        }
        self.write_outputs(ready.outputs);
        let now = Instant::now();
        let alive = Duration::from_secs(ALIVE_SECONDS);
        if self.greeted && self.exit.is_none() {
            if now.duration_since(self.heard) > SILENCE && self.has_room() {
                return Err(Lost::Silent);
            }
            if self.sent.is_empty() && now.duration_since(self.said) >= alive {
                Frame::Alive.write(&mut self.sent);
            }
        }
        if let Some(to) = self.to.as_ref().filter(|_| !self.sent.is_empty()) {
            match give(to.as_fd(), &mut self.sent, FULL) {
                Ok(0) => {}
                Ok(_) => self.said = now,
                // What the other end has said is still to be read.
                Err(_) => self.to = None,
            }
        }
        Ok(self.exit.filter(|_| self.outputs.iter().all(|output| output.queue.is_empty())))
    }

    fn has_room(&self) -> bool {
        self.outputs.iter().map(|output| output.queue.len()).sum::<usize>() < FULL
    }

    fn reads_input(&self) -> bool {
        self.input && self.greeted && self.window > 0 && self.exit.is_none()
    }

    fn wait(&self, signals: &SignalFd) -> Ready {
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        let none = PollFlags::empty();
        let flags = [
            PollFlags::IN,
            if self.exit.is_none() && self.has_room() { PollFlags::IN } else { none },
            if self.reads_input() { PollFlags::IN } else { none },
            if self.outputs[0].queue.is_empty() { none } else { PollFlags::OUT },
            if self.outputs[1].queue.is_empty() { none } else { PollFlags::OUT },
            if self.sent.is_empty() { none } else { PollFlags::OUT },
        ];
        let fds: [Option<BorrowedFd<'_>>; 6] = [
            Some(signals.as_fd()),
            Some(self.from.as_fd()),
            Some(stdin.as_fd()),
            Some(stdout.as_fd()),
            Some(stderr.as_fd()),
            self.to.as_ref().map(OwnedFd::as_fd),
        ];
        // A descriptor of which nothing is wanted is left out: its hang-up would wake this process for ever.
        let wanted: Vec<(usize, PollFd<'_>)> = fds
            .into_iter()
            .zip(flags)
            .enumerate()
            .filter(|(_, (_, flags))| !flags.is_empty())
            .filter_map(|(place, (fd, flags))| Some((place, PollFd::from_borrowed_fd(fd?, flags))))
            .collect();
        let (places, mut polled): (Vec<usize>, Vec<PollFd<'_>>) = wanted.into_iter().unzip();
        let limit = Timespec { tv_sec: i64::try_from(ALIVE_SECONDS).unwrap_or(1), tv_nsec: 0 };
        let _ = rustix::event::poll(&mut polled, Some(&limit));
        let is_ready = |wanted: usize| {
            places.iter().zip(&polled).any(|(place, fd)| *place == wanted && !fd.revents().is_empty())
        };
        Ready { input: is_ready(2), outputs: [is_ready(3), is_ready(4)] }
    }

    fn hear(&mut self) -> Result<(), Lost> {
        match take(self.from.as_fd(), FULL) {
            ReadResult::Bytes(bytes) => self.received.extend_from_slice(&bytes),
            ReadResult::Nothing => return Ok(()),
            ReadResult::End => return Err(Lost::Closed),
        }
        self.heard = Instant::now();
        if !self.greeted {
            self.greeted = take_greeting(&mut self.received)?;
        }
        while self.greeted
            && let Some(frame) = Frame::take(&mut self.received)?
        {
            match frame {
                Frame::Output(bytes) => self.outputs[0].add(&bytes),
                Frame::Error(bytes) => self.outputs[1].add(&bytes),
                Frame::Taken(count) => self.window += usize::try_from(count).unwrap_or(0),
                Frame::Exit(exit) => self.exit = Some(exit),
                Frame::Alive => {}
                _ => return Err(super::frames::Foreign.into()),
            }
        }
        Ok(())
    }

    /// Reads standard input, which may be a file of other processes too: it stays blocking.
    fn read_input(&mut self) {
        match take(io::stdin().as_fd(), LONGEST.min(self.window)) {
            ReadResult::Bytes(bytes) => {
                self.window -= bytes.len();
                Frame::Input(bytes).write(&mut self.sent);
            }
            ReadResult::Nothing => {}
            ReadResult::End => {
                self.input = false;
                Frame::InputEnd.write(&mut self.sent);
            }
        }
    }

    fn write_outputs(&mut self, ready: [bool; 2]) {
        let (stdout, stderr) = (io::stdout(), io::stderr());
        for (at, fd) in [stdout.as_fd(), stderr.as_fd()].into_iter().enumerate() {
            let Output { queue, is_closed } = &mut self.outputs[at];
            if ready[at] && !queue.is_empty() && give(fd, queue, AT_ONCE).is_err() {
                queue.clear();
                *is_closed = true;
                Frame::Closed(if at == 0 { 1 } else { 2 }).write(&mut self.sent);
            }
        }
    }

    /// Counts a signal; the fourth ends this process, in whatever it waits for.
    fn count(&mut self, signal: i32) {
        self.signals += 1;
        if self.signals > MOST_SIGNALS || !self.greeted {
            let _ = self.child.kill();
            signal::die_of(signal);
        }
    }

    /// Ends the connection.
    fn finish(&mut self, signals: &SignalFd) {
        let _ = self.await_ssh(signals);
    }

    /// Waits for the end of ssh, and kills it after [`PATIENCE`]; returns its exit code, if it ended by itself.
    ///
    /// ssh ends when nobody on the other host holds the output any more, which may be a process that the account's start-up files have
    /// left there.
    fn await_ssh(&mut self, signals: &SignalFd) -> Option<i32> {
        self.to = None;
        let until = Instant::now() + PATIENCE;
        let pidfd = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()).ok()?;
        let mut reads = true;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.code();
            }
            let Ok(left) = Timespec::try_from(until.saturating_duration_since(Instant::now())) else { break };
            let mut fds = vec![PollFd::new(signals, PollFlags::IN), PollFd::new(&pidfd, PollFlags::IN)];
            if reads {
                fds.push(PollFd::new(&self.from, PollFlags::IN));
            }
            if rustix::event::poll(&mut fds, Some(&left)) == Ok(0) {
                break;
            }
            if let Ok(Some(taken)) = signals.take() {
                self.count(taken.signal);
            }
            // ssh does not end before all was read.
            reads = reads && !matches!(take(self.from.as_fd(), FULL), ReadResult::End);
        }
        let _ = self.child.kill();
        None
    }

    fn failure(&mut self, host: &SshHost, why: &Lost, kinds: &Kinds, signals: &SignalFd) -> Failure {
        if matches!(why, Lost::Silent | Lost::Foreign(_)) {
            let _ = self.child.kill();
        }
        let code = self.await_ssh(signals);
        if self.greeted {
            let failure =
                Failure::new(kinds.lost, format!("lost the connection to `{host}`")).because(why.to_string());
            return failure.hint("what ran in the foreground there ends once ssh or penfold notices it there; `penfold ps` shows the rest");
        }
        // The shells' codes for a program that cannot be executed or found.
        let is_missing = matches!(code, Some(126 | 127));
        let failure = Failure::new(kinds.unreachable, format!("cannot run penfold on `{host}`"));
        match code {
            _ if is_missing => failure
                .because(format!("the host has no program {}", host.program()))
                .hint("install penfold there, or name its path: `--host ssh://HOST/usr/local/bin/penfold`"),
            Some(255) | None => failure.because("ssh cannot connect, or was ended"),
            Some(code) => failure.because(format!("ssh ended with {code}")),
        }
    }
}

/// What poll(2) found.
struct Ready {
    input: bool,
    outputs: [bool; 2],
}

impl Output {
    fn add(&mut self, bytes: &[u8]) {
        if !self.is_closed {
            self.queue.extend_from_slice(bytes);
        }
    }
}
