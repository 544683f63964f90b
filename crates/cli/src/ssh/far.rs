//! The far end: runs a verb for a caller on another host, and kills it when the caller is gone.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use penfold_process::Pid;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal, set_parent_process_death_signal};

use super::frames::{ALIVE_SECONDS, Exit, Frame, GREETING, LONGEST, Start};
use super::queue::{FULL, ReadResult, give, never_block, take};
use crate::args::verb::{Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::{exit_codes, surroundings};

/// The verb `ssh-end`, which help, completions and manual pages leave out.
pub(crate) const VERB: Verb = Verb {
    name: "ssh-end",
    aliases: &[],
    about: "Run a verb for a penfold on another host",
    description: "Speaks with the penfold on another host over standard input and output, for `--host ssh://`. The verb of that one runs \
        as `penfold ssh-end -- VERB`, and dies with this end.",
    examples: &[("penfold ssh-end", "the far end of `penfold --host ssh://HOST VERB`")],
    usage_failure: FailureKind::Usage,
    define: |command| command,
    places: Places::Here,
    call: |_, _| end(),
};

/// A caller that says nothing for this time is gone. One that is stopped (Ctrl-Z) says nothing.
const SILENCE: Duration = Duration::from_mins(1);

fn end() -> Result<u8, Failure> {
    Ok(Far::greet().or_fail(FailureKind::Other, "cannot speak with the other host")?.serve())
}

/// Returns the words of the verb if this process is the one that runs it for the far end. It dies with its parent.
pub(crate) fn verb_words() -> Option<Vec<OsString>> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != VERB.name || words.next()? != "--" {
        return None;
    }
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    Some(words.collect())
}

/// This end, with its connection.
struct Far {
    input: OwnedFd,
    output: OwnedFd,
    received: Vec<u8>,
    sent: Vec<u8>,
    heard: Instant,
    said: Instant,
}

/// The verb that runs.
struct Running {
    child: Child,
    pidfd: OwnedFd,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    /// What the verb has not taken yet of its standard input.
    input: Vec<u8>,
    input_ended: bool,
    exit: Option<Exit>,
    exit_said: bool,
}

/// The caller is gone, or speaks another language.
struct Lost;

impl Far {
    fn greet() -> io::Result<Far> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        let output = io::stdout().as_fd().try_clone_to_owned()?;
        never_block(&input)?;
        never_block(&output)?;
        let now = Instant::now();
        Ok(Far { input, output, received: Vec::new(), sent: GREETING.to_vec(), heard: now, said: now })
    }

    /// Runs the verb to its end, or to that of the connection; returns the exit code of this end.
    fn serve(&mut self) -> u8 {
        let mut running = None;
        loop {
            match self.turn(&mut running) {
                Ok(true) => return exit_codes::SUCCESS,
                Ok(false) => {}
                Err(Lost) => {
                    if let Some(Running { child, pidfd, .. }) = &mut running {
                        let _ = pidfd_send_signal(&*pidfd, Signal::KILL);
                        let _ = child.wait();
                    }
                    return exit_codes::FAILURE;
                }
            }
        }
    }

    /// Waits for the next thing that happens, and acts on it; true once the end of the verb was said.
    fn turn(&mut self, running: &mut Option<Running>) -> Result<bool, Lost> {
        self.wait(running.as_ref());
        self.hear()?;
        while let Some(frame) = Frame::take(&mut self.received).map_err(|_| Lost)? {
            act(frame, running)?;
        }
        if let Some(running) = running {
            for frame in running.progress(self.sent.len() < FULL) {
                frame.write(&mut self.sent);
            }
        }
        let is_over = running.as_ref().is_some_and(Running::is_over);
        if is_over && let Some(exit) = running.as_mut().and_then(Running::take_exit) {
            Frame::Exit(exit).write(&mut self.sent);
        }
        let now = Instant::now();
        if now.duration_since(self.heard) > SILENCE {
            return Err(Lost);
        }
        if self.sent.is_empty() && now.duration_since(self.said) >= Duration::from_secs(ALIVE_SECONDS) {
            Frame::Alive.write(&mut self.sent);
        }
        if !self.sent.is_empty() {
            let count = give(self.output.as_fd(), &mut self.sent, FULL).map_err(|_| Lost)?;
            if count > 0 {
                self.said = now;
            }
        }
        Ok(is_over && self.sent.is_empty())
    }

    fn wait(&self, running: Option<&Running>) {
        let mut fds = vec![PollFd::new(&self.input, PollFlags::IN)];
        // An error of the output shows that the caller is gone, even if nothing is to be said.
        let flags = if self.sent.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        fds.push(PollFd::new(&self.output, flags));
        if let Some(running) = running {
            running.watch(self.sent.len() < FULL, &mut fds);
        }
        let limit = Timespec { tv_sec: i64::try_from(ALIVE_SECONDS).unwrap_or(1), tv_nsec: 0 };
        let _ = rustix::event::poll(&mut fds, Some(&limit));
    }

    fn hear(&mut self) -> Result<(), Lost> {
        match take(self.input.as_fd(), FULL) {
            ReadResult::Bytes(bytes) => {
                self.received.extend_from_slice(&bytes);
                self.heard = Instant::now();
                Ok(())
            }
            ReadResult::Nothing => Ok(()),
            ReadResult::End => Err(Lost),
        }
    }
}

fn act(frame: Frame, running: &mut Option<Running>) -> Result<(), Lost> {
    match (frame, running) {
        (Frame::Start(start), running @ None) => {
            *running = Some(Running::start(start).map_err(|_| Lost)?);
        }
        (Frame::Input(bytes), Some(running)) => running.input.extend_from_slice(&bytes),
        (Frame::InputEnd, Some(running)) => running.input_ended = true,
        (Frame::Signal(number), Some(running)) => {
            if let Some(signal) = Signal::from_named_raw(number) {
                let _ = pidfd_send_signal(&running.pidfd, signal);
            }
        }
        (Frame::Closed(1), Some(running)) => running.stdout = None,
        (Frame::Closed(2), Some(running)) => running.stderr = None,
        (Frame::Alive, _) => {}
        _ => return Err(Lost),
    }
    Ok(())
}

impl Running {
    fn start(start: Start) -> io::Result<Running> {
        let mut command = Command::new(surroundings::program());
        command.arg0("penfold").args(["ssh-end", "--"]).args(start.words);
        command.stdin(if start.input { Stdio::piped() } else { Stdio::null() });
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        for fd in [
            stdin.as_ref().map(|fd| fd.as_fd()),
            stdout.as_ref().map(|fd| fd.as_fd()),
            stderr.as_ref().map(|fd| fd.as_fd()),
        ]
        .into_iter()
        .flatten()
        {
            never_block(fd)?;
        }
        Ok(Running {
            child,
            pidfd,
            stdin,
            stdout,
            stderr,
            input: Vec::new(),
            input_ended: false,
            exit: None,
            exit_said: false,
        })
    }

    fn watch<'a>(&'a self, has_room: bool, fds: &mut Vec<PollFd<'a>>) {
        let mut add =
            |fd: Option<BorrowedFd<'a>>, flags| fds.extend(fd.map(|fd| PollFd::from_borrowed_fd(fd, flags)));
        add(Some(self.pidfd.as_fd()), PollFlags::IN);
        if has_room {
            add(self.stdout.as_ref().map(|fd| fd.as_fd()), PollFlags::IN);
            add(self.stderr.as_ref().map(|fd| fd.as_fd()), PollFlags::IN);
        }
        if !self.input.is_empty() {
            add(self.stdin.as_ref().map(|fd| fd.as_fd()), PollFlags::OUT);
        }
    }

    /// Moves what can be moved; returns what is to be said of it.
    fn progress(&mut self, has_room: bool) -> Vec<Frame> {
        let mut frames = Vec::new();
        if let Some(stdin) = &self.stdin {
            match give(stdin.as_fd(), &mut self.input, FULL) {
                Ok(0) => {}
                Ok(count) => frames.push(Frame::Taken(u32::try_from(count).unwrap_or(u32::MAX))),
                // The verb reads no more: the rest is taken and lost, as with a pipe of this host.
                Err(_) => self.stdin = None,
            }
        }
        if self.stdin.is_none() && !self.input.is_empty() {
            frames.push(Frame::Taken(u32::try_from(self.input.len()).unwrap_or(u32::MAX)));
            self.input.clear();
        }
        if self.input_ended && self.input.is_empty() {
            self.stdin = None;
        }
        // The end comes first: what the verb has written before it is there when its outputs are read.
        if self.exit.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            let signal = status.signal().map(Exit::Signal);
            self.exit =
                signal.or_else(|| status.code().and_then(|code| u8::try_from(code).ok()).map(Exit::Code));
        }
        if has_room {
            read(&mut self.stdout, self.exit.is_some(), Frame::Output, &mut frames);
            read(&mut self.stderr, self.exit.is_some(), Frame::Error, &mut frames);
        }
        frames
    }

    /// Returns the exit, once.
    fn take_exit(&mut self) -> Option<Exit> {
        self.exit.filter(|_| !std::mem::replace(&mut self.exit_said, true))
    }

    /// Whether the verb has ended, and all that it has written was read.
    fn is_over(&self) -> bool {
        self.exit.is_some() && self.stdout.is_none() && self.stderr.is_none()
    }
}

/// Reads an output. After the end of the verb, an output without bytes is over, whoever else holds it.
fn read<T: std::os::fd::AsFd>(
    source: &mut Option<T>,
    has_ended: bool,
    frame: fn(Vec<u8>) -> Frame,
    frames: &mut Vec<Frame>,
) {
    let Some(fd) = source else { return };
    match take(fd.as_fd(), LONGEST) {
        ReadResult::Bytes(bytes) => frames.push(frame(bytes)),
        ReadResult::Nothing if !has_ended => {}
        ReadResult::Nothing | ReadResult::End => *source = None,
    }
}
