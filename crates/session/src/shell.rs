//! The shell: one bash, its standard input, its end.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use penfold_process::{Pid, ProcFs, Process, SchedulerState, pid_from_raw};
use penfold_sys::signal::{self, SignalSet};
use rustix::pipe::PipeFlags;
use rustix::process::Signal;

use crate::script;

/// A running bash.
#[derive(Debug)]
pub(crate) struct Shell {
    process: Process,
    /// The write end of its standard input.
    input: OwnedFd,
    /// The inode of that pipe.
    inode: u64,
}

impl Shell {
    /// Starts a shell, with `mask` as its signal mask. The caller has blocked SIGCHLD, and afterwards looks for children
    /// that ended meanwhile.
    pub(crate) fn start(
        program: &OsStr,
        directory: Option<&Path>,
        mask: &SignalSet,
        proc: &mut ProcFs,
    ) -> io::Result<Shell> {
        let (read, input) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&input, true)?;
        let inode = rustix::fs::fstat(&read)?.st_ino;
        let mut command = Command::new(program);
        command.args(["--norc", "-s"]).stdin(read).stdout(Stdio::null()).stderr(Stdio::null());
        command.current_dir(directory.unwrap_or(Path::new(".")));
        signal::set_mask(mask)?;
        let child = command.spawn();
        signal::block_signals(&SignalSet::of([Signal::CHILD.as_raw()]))?;
        let child = child?;
        let pid = i32::try_from(child.id()).ok().and_then(pid_from_raw).ok_or(io::ErrorKind::NotFound)?;
        let process = Process::open(proc, pid)?;
        let process = process.ok_or_else(|| io::Error::other("the shell ended at once"))?;
        Ok(Shell { process, input, inode })
    }

    pub(crate) fn pid(&self) -> Pid {
        self.process.id().pid
    }

    /// Writes lines to the shell without waiting.
    ///
    /// # Errors
    /// Also when the pipe is full: then the shell does not read its lines.
    pub(crate) fn write(&self, lines: &[u8]) -> io::Result<()> {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&self.input, lines))?;
        if written == lines.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Makes the shell leave the command that it runs, once the child in its foreground has ended.
    pub(crate) fn interrupt(&self) {
        let _ = self.process.signal(Signal::CONT);
        if let Some(signal) = signal::signal_of_number(script::INTERRUPT) {
            let _ = self.process.signal(signal);
        }
    }

    pub(crate) fn kill(&self) {
        let _ = self.process.signal(Signal::KILL);
    }

    /// Returns the shell's directory.
    pub(crate) fn directory(&self) -> Option<PathBuf> {
        std::fs::read_link(format!("/proc/{}/cwd", self.pid())).ok()
    }

    /// Tells whether the shell waits for the next line: it sleeps, its standard input is the host's pipe, and that pipe is
    /// empty. While the shell runs a command, its standard input is another file.
    pub(crate) fn waits_for_lines(&self, proc: &mut ProcFs) -> bool {
        let sleeps = proc
            .stat(self.pid())
            .is_ok_and(|stat| stat.is_some_and(|stat| stat.state == SchedulerState::Sleeping));
        let input = std::fs::read_link(format!("/proc/{}/fd/0", self.pid()));
        let is_pipe =
            input.is_ok_and(|link| link.as_os_str() == OsStr::new(&format!("pipe:[{}]", self.inode)));
        sleeps && is_pipe && rustix::io::ioctl_fionread(self.input.as_fd()).is_ok_and(|bytes| bytes == 0)
    }
}
