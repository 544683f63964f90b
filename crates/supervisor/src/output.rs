//! The output of a detached sandbox: its pipes or its terminal, and the log.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use penfold_state::log::{DrainResult, LogWriter, PipeState, Stream};
use penfold_state::{Detach, Files, Identity};
use penfold_sys::launch::{OwnStdio, Program};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::pipe::PipeFlags;

use crate::identity::give_stdio;
use crate::terminal::Terminal;
use crate::wire::Size;

/// The size of one drain that shows a command that waits for its pipe.
const BUSY_BYTES: u64 = 256 << 10;
/// The largest pipe without privilege by default, see pipe(7).
const WIDE_PIPE_BYTES: usize = 1 << 20;
/// The most reads of a terminal at the end: its buffer, but no endless output of a writer outside of the sandbox.
const FINAL_READS: usize = 256;

/// The sources of a command's output, and the log.
pub(crate) struct Output {
    /// `None` while the other process writes the log.
    log: Option<LogWriter>,
    log_limit: u64,
    pipes: Vec<OutputPipe>,
    terminal: Option<Terminal>,
    /// The command's standard descriptors, dropped once the command runs.
    stdio: Option<OwnStdio>,
    /// The line between the output of the former life and this one, written once the command runs.
    line: Option<String>,
}

/// A pipe that the command writes to.
struct OutputPipe {
    stream: Stream,
    fd: OwnedFd,
    enlarged: bool,
}

impl OutputPipe {
    /// Moves the content of the pipe into the log. False at EOF: no writer is left.
    fn drain(&mut self, log: &mut LogWriter) -> bool {
        let Ok(drained) = log.drain(self.stream, self.fd.as_fd()) else { return false };
        if drained.bytes >= BUSY_BYTES {
            self.enlarge();
        }
        drained.state != PipeState::End
    }

    /// Enlarges the pipe so that a command with much output can continue while the log is written. May fail at the
    /// user's pipe limit.
    fn enlarge(&mut self) {
        if !std::mem::replace(&mut self.enlarged, true) {
            let _ = rustix::pipe::fcntl_setpipe_size(&self.fd, WIDE_PIPE_BYTES);
        }
    }

    /// Moves the rest that members have left into the log. At most the pipe's size is read: a writer outside of the
    /// sandbox could write without end.
    fn drain_rest(&self, log: &mut LogWriter) {
        let left = rustix::pipe::fcntl_getpipe_size(&self.fd).unwrap_or(WIDE_PIPE_BYTES);
        let mut left = u64::try_from(left).unwrap_or(u64::MAX);
        while let Ok(DrainResult { bytes, state: PipeState::Open }) = log.drain(self.stream, self.fd.as_fd())
            && bytes < left
        {
            left -= bytes;
        }
    }
}

impl Output {
    /// Creates the log, or continues that of the former life, and makes the pipes or the terminal.
    pub(crate) fn open(files: &Files, detach: &Detach) -> io::Result<Output> {
        let log = match &detach.life {
            None => LogWriter::create(files.dir(), detach.log_limit),
            Some(_) => LogWriter::reopen(files.dir(), detach.log_limit),
        };
        let log = log.map_err(io::Error::other)?;
        let (terminal, pipes, stdio) = if detach.terminal { with_terminal()? } else { with_pipes()? };
        let line = detach.life.as_ref().map(|life| {
            let former = files.report_of(life.restarts).ok().flatten();
            life.line(former.and_then(|report| report.exit))
        });
        Ok(Output { log: Some(log), log_limit: detach.log_limit, pipes, terminal, stdio: Some(stdio), line })
    }

    /// Creates the log and the pipes or the terminal of a recorded exec. Returns the command's standard descriptors too.
    ///
    /// With a terminal, an `input` that is a stream socket becomes the first viewer, and what comes from a FIFO is typed.
    pub(crate) fn of_exec(
        files: &Files,
        log_limit: u64,
        terminal: Option<Size>,
        input: OwnedFd,
    ) -> io::Result<(Output, OwnStdio)> {
        let log = LogWriter::create(files.dir(), log_limit).map_err(io::Error::other)?;
        let (terminal, pipes, stdio) = match terminal {
            None => {
                let (none, pipes, stdio) = with_pipes()?;
                (none, pipes, OwnStdio { input, ..stdio })
            }
            Some(size) => {
                let (mut terminal, pipes, stdio) = with_terminal()?;
                if let Some(terminal) = &mut terminal {
                    let kind = FileType::from_raw_mode(rustix::fs::fstat(&input)?.st_mode);
                    if kind == FileType::Socket {
                        terminal.attach(0, input, size)?;
                    } else if kind == FileType::Fifo {
                        terminal.type_from(input)?;
                    }
                    // After the attachment, whose redraw changes the size for a moment: no program is there to redraw.
                    terminal.client_resized(0, size)?;
                }
                (terminal, pipes, stdio)
            }
        };
        Ok((Output { log: Some(log), log_limit, pipes, terminal, stdio: None, line: None }, stdio))
    }

    /// Gives the command a session of its own and its standard descriptors.
    pub(crate) fn set_stdio(&mut self, program: &mut Program, identity: Option<&Identity>) {
        if let Some(stdio) = self.stdio.take() {
            if let Some(identity) = identity {
                give_stdio(&stdio, identity);
            }
            program.own_session(stdio);
        }
    }

    /// Closes the copies of the command's descriptors once the command runs, and writes the line between two lives.
    pub(crate) fn mark_running(&mut self) {
        self.stdio = None;
        let (stream, end) =
            if self.terminal.is_some() { (Stream::Stdout, "\r\n") } else { (Stream::Stderr, "\n") };
        if let (Some(line), Some(log)) = (self.line.take(), &mut self.log) {
            let before = if log.is_at_line_start() { "" } else { end };
            log.append(stream, format!("{before}{line}{end}").as_bytes());
        }
    }

    /// Closes the standby's copies; the supervisor has its own.
    pub(crate) fn close_copies(&mut self) {
        self.stdio = None;
        self.log = None;
    }

    /// Takes over from a killed supervisor. If the log cannot be reopened, it ends here.
    pub(crate) fn inherit(&mut self, files: &Files) {
        self.log = LogWriter::reopen(files.dir(), self.log_limit).ok();
        self.line = None;
        if let Some(terminal) = &mut self.terminal {
            terminal.inherit();
        }
    }

    /// Returns the pipes to poll; [`Output::drain`] takes the results in the same order.
    pub(crate) fn pipe_sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.pipes.iter().map(|pipe| PollFd::new(&pipe.fd, PollFlags::IN))
    }

    /// Returns the number of pipes.
    pub(crate) fn pipe_count(&self) -> usize {
        self.pipes.len()
    }

    /// Returns the terminal's descriptors to poll, if there is a terminal.
    pub(crate) fn terminal_sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.terminal.iter().flat_map(Terminal::sources)
    }

    /// Moves the content of ready pipes into the log. True if a pipe was ready.
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

    /// Serves the terminal and writes its output into the log. True if there was output.
    pub(crate) fn serve_terminal(&mut self) -> bool {
        let (Some(terminal), log) = (&mut self.terminal, &mut self.log) else { return false };
        terminal.serve(|shown| {
            if let Some(log) = log.as_mut() {
                log.append(Stream::Stdout, shown);
            }
        })
    }

    /// Attaches a viewer to the terminal, or resizes one.
    ///
    /// # Errors
    /// The reason, as a sentence.
    pub(crate) fn attach_or_resize(
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

    /// Wakes those that wait for more in the log.
    pub(crate) fn wake_followers(&mut self) {
        if let Some(log) = &mut self.log {
            log.wake_followers();
        }
    }

    /// Moves what is in the pipes, or in the terminal, into the log.
    pub(crate) fn save(&mut self) {
        if let Some(log) = &mut self.log {
            for pipe in &self.pipes {
                pipe.drain_rest(log);
            }
        }
        let _ = (0..FINAL_READS).take_while(|_| self.serve_terminal()).count();
    }

    /// Moves the rest of the output into the log, at the end of the sandbox.
    pub(crate) fn finish(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.stop_waiting();
        }
        self.save();
    }
}

type OpenedOutput = (Option<Terminal>, Vec<OutputPipe>, OwnStdio);

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
    let pipe = |stream, fd| OutputPipe { stream, fd, enlarged: false };
    let pipes = vec![pipe(Stream::Stdout, out), pipe(Stream::Stderr, err)];
    Ok((None, pipes, OwnStdio { input, output, error, terminal: false }))
}
