//! The command that runs: its pipes, its log, its end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use penfold_process::StartTime;
use penfold_state::ExitStatus;
use penfold_state::exit_codes::TIMED_OUT;
use penfold_state::log::{DrainResult, LogEntry, LogPosition, LogReader, LogWriter, PipeState, Stream};
use penfold_state::time::now_ms;
use rustix::process::Signal;

use crate::dir::{SessionDir, open_fifo};
use crate::drains::Drains;
use crate::interrupt::Interrupt;
use crate::members;
use crate::protocol::{CommandEnd, EndKind};

/// A pipe from which this many bytes come at once belongs to a command that waits for its pipe.
const BUSY: u64 = 48 << 10;
/// The largest pipe without privilege, unless the host has another limit, pipe(7).
const WIDE: usize = 1 << 20;
/// The time after which the shell is first checked for having lost its lines, and the longest interval of checks.
const FIRST_CHECK: Duration = Duration::from_millis(100);
const LAST_CHECK: Duration = Duration::from_secs(2);

/// A command that waits.
#[derive(Debug)]
pub(crate) struct QueuedCommand {
    pub(crate) number: u64,
    /// Whether there are files `pre` and `post`.
    pub(crate) is_wrapped: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) output_limit: u64,
}

/// A command that runs.
#[derive(Debug)]
pub(crate) struct RunningCommand {
    pub(crate) number: u64,
    dir: OwnedFd,
    pipes: [CommandPipe; 2],
    log: LogWriter,
    limit: u64,
    /// Whether the disk was full for a while.
    has_lost: bool,
    pub(crate) since: StartTime,
    /// The status, once the shell has come back.
    pub(crate) status: Option<i32>,
    /// The shell's code, if the shell has ended.
    pub(crate) shell_code: Option<i32>,
    /// Whether the shell has written its state, and all of it.
    pub(crate) has_settled: Option<bool>,
    /// Whether the host has killed the shell.
    pub(crate) is_replaced: bool,
    pub(crate) timeout_at: Option<Instant>,
    pub(crate) grace: Duration,
    pub(crate) interrupt: Option<Interrupt>,
    /// When to check that the shell still reads its command, and the interval.
    pub(crate) check_at: Instant,
    check_pause: Duration,
    /// The number of checks in a row that found the shell waiting for lines.
    pub(crate) lost_checks: u32,
}

#[derive(Debug)]
struct CommandPipe {
    stream: Stream,
    name: String,
    fd: OwnedFd,
    bytes: u64,
    is_wide: bool,
}

/// The names of the FIFOs for standard output and error. A FIFO without a writer serves the next command.
#[derive(Debug, Default)]
pub(crate) struct Fifos {
    spare: [Option<String>; 2],
    made: u64,
}

impl Fifos {
    /// Opens the FIFO for a stream.
    fn open(&mut self, dir: &SessionDir, stream: Stream) -> io::Result<CommandPipe> {
        let (index, kind) = if stream == Stream::Stdout { (0, "out") } else { (1, "err") };
        let spare = self.spare.get_mut(index).and_then(Option::take);
        let name = if let Some(name) = spare {
            name
        } else {
            self.made += 1;
            let name = format!("{kind}.{}", self.made);
            dir.make_fifo(&name)?;
            name
        };
        let fd = open_fifo(dir.fd(), &name)?;
        Ok(CommandPipe { stream, name, fd, bytes: 0, is_wide: false })
    }

    /// Keeps the FIFO for the next command, or leaves it to the background jobs that still write to it.
    fn close(&mut self, dir: &SessionDir, pipe: CommandPipe, has_writer: bool, drains: &mut Drains) {
        if has_writer {
            dir.remove(&pipe.name);
            drains.add(pipe.fd);
        } else if let Some(spare) = self.spare.get_mut(usize::from(pipe.stream == Stream::Stderr)) {
            *spare = Some(pipe.name);
        }
    }
}

impl RunningCommand {
    /// Makes the pipes and the log of a command.
    pub(crate) fn open(
        session: &SessionDir,
        fifos: &mut Fifos,
        queued: &QueuedCommand,
    ) -> io::Result<RunningCommand> {
        let dir = session.open_command(queued.number)?;
        let pipes = [fifos.open(session, Stream::Stdout)?, fifos.open(session, Stream::Stderr)?];
        let log = LogWriter::create(dir.as_fd(), queued.output_limit).map_err(io::Error::other)?;
        let now = Instant::now();
        Ok(RunningCommand {
            number: queued.number,
            dir,
            pipes,
            log,
            limit: queued.output_limit,
            has_lost: false,
            since: members::start_time_now(),
            status: None,
            shell_code: None,
            has_settled: None,
            is_replaced: false,
            timeout_at: queued.timeout.and_then(|timeout| now.checked_add(timeout)),
            grace: queued.grace,
            interrupt: None,
            check_at: now + FIRST_CHECK,
            check_pause: FIRST_CHECK,
            lost_checks: 0,
        })
    }

    /// Tells whether the shell has come back, or ended.
    pub(crate) fn has_returned(&self) -> bool {
        self.status.is_some() || self.shell_code.is_some()
    }

    /// Returns the names of the FIFOs.
    pub(crate) fn fifos(&self) -> (&str, &str) {
        let [out, err] = &self.pipes;
        (&out.name, &err.name)
    }

    /// Returns the pipes to poll; [`RunningCommand::drain`] takes the answers in the same order.
    pub(crate) fn pipes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pipes.iter().map(|pipe| pipe.fd.as_fd())
    }

    /// Moves the content of the pipes that are ready into the log.
    pub(crate) fn drain(&mut self, session: &SessionDir, ready: impl Iterator<Item = bool>) {
        for (pipe, is_ready) in self.pipes.iter_mut().zip(ready) {
            // A pipe that has lost its writers would wake poll(2) at once; opened again, it waits for the next one.
            if is_ready
                && pipe.drain(&mut self.log) == PipeState::End
                && let Ok(fresh) = open_fifo(session.fd(), &pipe.name)
            {
                pipe.fd = fresh;
            }
        }
        self.has_lost |= self.log.lost() > 0;
    }

    /// Sets the time of the next check.
    pub(crate) fn has_checked(&mut self, is_lost: bool) {
        self.lost_checks = if is_lost { self.lost_checks + 1 } else { 0 };
        self.check_pause = if is_lost { FIRST_CHECK } else { (self.check_pause * 2).min(LAST_CHECK) };
        self.check_at = Instant::now() + self.check_pause;
    }

    /// Moves the rest of the output into the log and returns the end. Pipes that still have writers go to `drains`.
    pub(crate) fn finish(
        mut self,
        session: &SessionDir,
        fifos: &mut Fifos,
        drains: &mut Drains,
    ) -> (CommandEnd, OwnedFd) {
        let has_writers = self.pipes.each_mut().map(|pipe| pipe.empty(&mut self.log));
        let [out, err] = self.pipes;
        let (stdout_bytes, stderr_bytes) = (out.bytes, err.bytes);
        let total = stdout_bytes + stderr_bytes;
        // A frame of one byte takes 17 bytes of the log.
        let may_lack = self.has_lost || self.log.lost() > 0 || total > self.limit / 32;
        let truncated_bytes = if may_lack { total.saturating_sub(kept(self.dir.as_fd())) } else { 0 };
        for (pipe, has_writer) in [out, err].into_iter().zip(has_writers) {
            fifos.close(session, pipe, has_writer, drains);
        }
        let (how, code) = match (&self.interrupt, self.shell_code) {
            (Some(interrupt), _) => (interrupt.kind, code_of(interrupt.kind)),
            (None, Some(code)) => (EndKind::ShellExited, self.status.unwrap_or(code)),
            (None, None) => (EndKind::Exited, self.status.unwrap_or(1)),
        };
        let end = CommandEnd {
            number: self.number,
            how,
            code,
            began: true,
            replaced: self.is_replaced,
            stdout_bytes,
            stderr_bytes,
            truncated_bytes,
            remaining: Vec::new(),
            ended_at_ms: now_ms(),
            reason: None,
        };
        (end, self.dir)
    }
}

impl CommandPipe {
    fn drain(&mut self, log: &mut LogWriter) -> PipeState {
        let Ok(DrainResult { bytes, state }) = log.drain(self.stream, self.fd.as_fd()) else {
            return PipeState::End;
        };
        self.bytes += bytes;
        if bytes >= BUSY && !std::mem::replace(&mut self.is_wide, true) {
            let _ = rustix::pipe::fcntl_setpipe_size(&self.fd, WIDE);
        }
        state
    }

    /// Moves what the pipe holds into the log, and no more from a writer that goes on. True if there is a writer.
    fn empty(&mut self, log: &mut LogWriter) -> bool {
        let size = rustix::pipe::fcntl_getpipe_size(&self.fd).unwrap_or(WIDE);
        let most = self.bytes.saturating_add(u64::try_from(size).unwrap_or(u64::MAX));
        loop {
            match self.drain(log) {
                PipeState::End => return false,
                PipeState::Open if self.bytes < most => {}
                PipeState::Open | PipeState::Empty => return true,
            }
        }
    }
}

/// Returns the code of a command that the host has ended. The shell's own status says only how its lines were left.
pub(crate) fn code_of(kind: EndKind) -> i32 {
    let interrupted = || ExitStatus::Signal(Signal::INT.as_raw()).shell_code();
    if kind == EndKind::TimedOut { i32::from(TIMED_OUT) } else { interrupted() }
}

/// Returns the number of output bytes that a log keeps.
fn kept(command: BorrowedFd<'_>) -> u64 {
    let Ok(mut reader) = LogReader::open(command, LogPosition::Start) else { return 0 };
    let mut kept = 0;
    while let Ok(Some(entry)) = reader.next_entry() {
        if let LogEntry::Data { bytes, .. } = entry {
            kept += u64::try_from(bytes.len()).unwrap_or(0);
        }
    }
    kept
}

/// Makes the end of a command that has not begun.
pub(crate) fn not_begun(number: u64, how: EndKind, code: i32, reason: Option<String>) -> CommandEnd {
    CommandEnd {
        number,
        how,
        code,
        began: false,
        replaced: false,
        stdout_bytes: 0,
        stderr_bytes: 0,
        truncated_bytes: 0,
        remaining: Vec::new(),
        ended_at_ms: now_ms(),
        reason,
    }
}
