//! The record of an exec, in its exec supervisor: the output goes into a log, the end into files.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use penfold_process::{Pid, ProcFs};
use penfold_state::{ExecFiles, RecordedExec};
use penfold_teardown::Cause;
use rustix::event::PollFd;
use rustix::fs::{Mode, OFlags};

use crate::end_cell::{EndCell, SeenEnd};
use crate::exit_record::ExitRecord;
use crate::outcome::{ExitStatus, Report};
use crate::output::Output;
use crate::wire::Size;

/// The output and the files of a recorded exec.
pub(crate) struct ExecRecord {
    files: ExecFiles,
    cell: EndCell,
    output: Output,
    exit: ExitRecord,
    exec: RecordedExec,
    /// The `/proc` of the sandbox's supervisor, if the exec supervisor is in another pid namespace.
    outer_proc: Option<File>,
    has_remaining: bool,
    /// Keeps the open input from ending with the last client that writes.
    input: Option<OwnedFd>,
}

impl ExecRecord {
    /// Writes `exec.json`, before the command runs.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn begin(
        files: ExecFiles,
        cell: EndCell,
        output: Output,
        exec: RecordedExec,
        input: Option<OwnedFd>,
    ) -> io::Result<ExecRecord> {
        files.write_exec(&exec)?;
        let (exit, outer_proc) = (ExitRecord::default(), None);
        Ok(ExecRecord { files, cell, output, exit, exec, outer_proc, has_remaining: false, input })
    }

    /// Keeps the `/proc` of this pid namespace, before the exec supervisor enters another one.
    pub(crate) fn keep_outer_proc(&mut self) {
        self.outer_proc = File::open("/proc").ok();
    }

    /// Returns the number of the exec.
    pub(crate) fn number(&self) -> u32 {
        self.files.number()
    }

    /// Marks the command as running. Returns its pid in the pid namespace of the sandbox's supervisor.
    pub(crate) fn mark_running(&mut self, leader: Option<Pid>, is_jailed: bool) -> Option<i32> {
        self.output.mark_running();
        let seen = leader.map(Pid::as_raw_pid);
        let (outside, inside) = match self.outer_proc.take() {
            // This process is in the pid namespace of the jail, or of penfold's init.
            Some(proc) => (only_child(&proc), seen.filter(|_| is_jailed)),
            None => (seen, leader.filter(|_| is_jailed).and_then(innermost_pid)),
        };
        (self.exec.leader, self.exec.leader_inside) = (outside, inside);
        // On a full disk the file stays as it was: only the pid is missing.
        let _ = self.files.write_exec(&self.exec);
        self.exec.leader
    }

    /// Returns the descriptors to poll; [`ExecRecord::serve`] takes the results in the same order.
    pub(crate) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.output.pipe_sources().chain(self.output.terminal_sources())
    }

    /// Moves output into the log.
    pub(crate) fn serve(&mut self, ready: &[bool]) {
        let (pipes, terminal) = ready.split_at_checked(self.output.pipe_count()).unwrap_or((ready, &[]));
        self.output.drain(pipes);
        if terminal.contains(&true) {
            self.output.serve_terminal();
        }
    }

    /// Tells whether what the command leaves goes on after its end.
    pub(crate) fn lingers(&self) -> bool {
        self.exec.lingers
    }

    /// Moves what the command has written before its end into the log; what it has left may go on writing.
    pub(crate) fn save_output(&mut self) {
        self.output.save();
    }

    /// Sets the size of the terminal.
    pub(crate) fn resize(&mut self, size: Size) {
        let _ = self.output.attach_or_resize(0, size, None);
    }

    /// Ends the open input, once the command has read what was written. A terminal has no end of input but the key for it.
    pub(crate) fn close_input(&mut self) {
        if !self.exec.terminal {
            self.files.remove_input();
            self.input = None;
        }
    }

    /// Writes `exit.json` as soon as the exit is known.
    pub(crate) fn write_exited(&mut self, exit: Option<ExitStatus>, cause: Cause) {
        self.cell.store(SeenEnd { exit, cause, verified: false });
        self.exit.write(&self.files, exit, cause);
        if self.exec.lingers {
            // No more output may come for long.
            self.output.wake_followers();
        }
    }

    /// Writes the end, or the survivors. The report comes last: it marks the exec as ended.
    pub(crate) fn conclude(&mut self, report: &Report) {
        self.output.finish();
        let Report { exit, cause, .. } = *report;
        if !report.findings.verified {
            self.has_remaining = true;
            let _ = self.files.write_remaining(&report.findings.survivors);
            return;
        }
        // Not before: a terminal whose input has no writer any more would be ready at each look at survivors.
        if self.input.take().is_some() {
            self.files.remove_input();
        }
        self.cell.store(SeenEnd { exit, cause, verified: true });
        self.exit.write(&self.files, exit, cause);
        self.exit.conclude(&self.files, report);
        if self.has_remaining {
            self.files.remove_remaining();
        }
    }
}

/// Returns the pid of a child in the pid namespace that it is in.
fn innermost_pid(pid: Pid) -> Option<i32> {
    let status = ProcFs::open().ok()?.status(pid).ok()??;
    status.namespace_pids.last().map(|pid| pid.as_raw_pid())
}

/// Returns the pid of this process's only child, in the pid namespace of another `/proc`.
fn only_child(proc: &File) -> Option<i32> {
    let own = rustix::fs::readlinkat(proc, "self", Vec::new()).ok()?;
    let own = own.to_str().ok()?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(proc, format!("{own}/task/{own}/children"), flags, Mode::empty()).ok()?;
    let mut text = [0_u8; 16];
    let length = rustix::io::read(&file, &mut text).ok()?;
    let text = std::str::from_utf8(text.get(..length)?).ok()?;
    text.trim_end().parse().ok()
}

/// The descriptors with which a recorded exec begins, made by the sandbox's supervisor.
pub(crate) struct ExecPlan {
    /// The standard input, or the stream of the terminal's first viewer.
    pub(crate) input: OwnedFd,
    pub(crate) files: ExecFiles,
    pub(crate) cell: EndCell,
}

impl ExecPlan {
    /// Returns the descriptors that the exec supervisor keeps.
    pub(crate) fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.input.as_fd(), self.files.dir(), self.cell.as_fd()]
    }
}
