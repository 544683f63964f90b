//! The output of a detached sandbox: the pipes or the terminal that its command writes to, and the log.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use penfold_state::log::{Drained, PipeState, Stream, Writer};
use penfold_state::{Detach, Files};
use penfold_sys::launch::{OwnStdio, Program};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;

use crate::terminal::Terminal;
use crate::wire::Size;

/// Output of which so many bytes come at once comes from a command that waits for its pipe.
const BUSY: u64 = 256 << 10;
/// As large as a pipe may be made without privilege, unless the host says otherwise (pipe(7)).
const WIDE: usize = 1 << 20;
/// As often as a terminal is read at the end: as much as it holds, and not more from who writes to it from outside.
const LAST_READS: usize = 256;

/// Where the output of a command comes from, and goes to.
pub(crate) struct Output {
    /// None where the other process writes it.
    log: Option<Writer>,
    log_limit: u64,
    pipes: Vec<Pipe>,
    terminal: Option<Terminal>,
    /// What the command gets; gone once it has it.
    given: Option<OwnStdio>,
}

/// What a command writes to.
struct Pipe {
    stream: Stream,
    fd: OwnedFd,
    wide: bool,
}

impl Pipe {
    /// Moves what it holds into the log. False once nobody can write to it any more.
    fn drain(&mut self, log: &mut Writer) -> bool {
        let Ok(drained) = log.drain(self.stream, self.fd.as_fd()) else { return false };
        if drained.bytes >= BUSY {
            self.widen();
        }
        drained.state != PipeState::End
    }

    /// Lets a command that writes much go on while what it wrote is put into the log. Its user may not have the room.
    fn widen(&mut self) {
        if !std::mem::replace(&mut self.wide, true) {
            let _ = rustix::pipe::fcntl_setpipe_size(&self.fd, WIDE);
        }
    }

    /// Moves into the log what members have left in it: as much as it holds, and not more from who writes to it from
    /// outside.
    fn empty(&self, log: &mut Writer) {
        let left = rustix::pipe::fcntl_getpipe_size(&self.fd).unwrap_or(WIDE);
        let mut left = u64::try_from(left).unwrap_or(u64::MAX);
        while let Ok(Drained { bytes, state: PipeState::Open }) = log.drain(self.stream, self.fd.as_fd())
            && bytes < left
        {
            left -= bytes;
        }
    }
}

impl Output {
    /// Makes the log, and the pipes or the terminal.
    pub(crate) fn open(files: &Files, detach: &Detach) -> io::Result<Output> {
        let log = Writer::create(files.dir(), detach.log_limit).map_err(io::Error::other)?;
        let (terminal, pipes, given) = if detach.terminal { with_terminal()? } else { with_pipes()? };
        Ok(Output { log: Some(log), log_limit: detach.log_limit, pipes, terminal, given: Some(given) })
    }

    /// Gives the command a session of its own, and the log or the terminal to write to.
    pub(crate) fn equip(&mut self, program: &mut Program) {
        if let Some(given) = self.given.take() {
            program.apart(given);
        }
    }

    /// The command has what it was given.
    pub(crate) fn has_run(&mut self) {
        self.given = None;
    }

    /// Leaves the output to the supervisor, which has copies of all this.
    pub(crate) fn close_copies(&mut self) {
        self.given = None;
        self.log = None;
    }

    /// Goes on in the place of a supervisor that was killed. A log that cannot be gone on with ends where it is.
    pub(crate) fn inherit(&mut self, files: &Files) {
        self.log = Writer::reopen(files.dir(), self.log_limit).ok();
        if let Some(terminal) = &mut self.terminal {
            terminal.inherit();
        }
    }

    /// The pipes to poll; [`Output::drain`] takes the answers in the same order.
    pub(crate) fn pipe_sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.pipes.iter().map(|pipe| PollFd::new(&pipe.fd, PollFlags::IN))
    }

    /// How many pipes there are.
    pub(crate) fn pipe_count(&self) -> usize {
        self.pipes.len()
    }

    /// The descriptors of the terminal, if there is one.
    pub(crate) fn terminal_sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.terminal.iter().flat_map(Terminal::sources)
    }

    /// Moves what the pipes hold into the log. True if one was looked into.
    pub(crate) fn drain(&mut self, ready: &[bool]) -> bool {
        let Output { pipes, log, .. } = self;
        let mut ready = ready.iter();
        let mut any = false;
        pipes.retain_mut(|pipe| {
            if ready.next() != Some(&true) {
                return true;
            }
            let Some(log) = log else { return false };
            any = true;
            pipe.drain(log)
        });
        any
    }

    /// Shows and types at the terminal, and writes down what it shows. True if there was anything.
    pub(crate) fn serve_terminal(&mut self) -> bool {
        let (Some(terminal), log) = (&mut self.terminal, &mut self.log) else { return false };
        terminal.serve(|shown| {
            if let Some(log) = log.as_mut() {
                log.append(Stream::Stdout, shown);
            }
        })
    }

    /// Does what is asked of the terminal.
    ///
    /// # Errors
    /// Why not, in a sentence.
    pub(crate) fn at_terminal(
        &mut self,
        client: u64,
        size: Size,
        stream: Option<OwnedFd>,
    ) -> Result<(), String> {
        let terminal = self.terminal.as_mut().ok_or("the sandbox has no terminal")?;
        let done = match stream {
            Some(stream) => terminal.attach(client, stream, size),
            None => terminal.client_resized(client, size),
        };
        done.map_err(|error| format!("the terminal does not take it: {error}"))
    }

    /// Writes down all that is left of it, at the end of the sandbox.
    pub(crate) fn finish(&mut self) {
        if let Some(log) = &mut self.log {
            for pipe in &self.pipes {
                pipe.empty(log);
            }
        }
        if let Some(terminal) = &mut self.terminal {
            terminal.hurry();
        }
        let _ = (0..LAST_READS).take_while(|_| self.serve_terminal()).count();
    }
}

type OpenedOutput = (Option<Terminal>, Vec<Pipe>, OwnStdio);

fn with_terminal() -> io::Result<OpenedOutput> {
    let (terminal, slave) = Terminal::open()?;
    let (output, error) = (slave.try_clone()?, slave.try_clone()?);
    Ok((Some(terminal), Vec::new(), OwnStdio { input: slave, output, error, terminal: true }))
}

fn with_pipes() -> io::Result<OpenedOutput> {
    let input = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (out, output) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let (err, error) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    for pipe in [&out, &err] {
        rustix::io::ioctl_fionbio(pipe, true)?;
    }
    let pipe = |stream, fd| Pipe { stream, fd, wide: false };
    let pipes = vec![pipe(Stream::Stdout, out), pipe(Stream::Stderr, err)];
    Ok((None, pipes, OwnStdio { input, output, error, terminal: false }))
}
