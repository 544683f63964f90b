//! Starts, replaces and loses shells, and takes the steps that they report.

use std::io;
use std::time::Instant;

use super::{READY, SessionHost, ShellOrigin, ShellPhase};
use crate::shell::Shell;

impl SessionHost {
    /// Starts a shell.
    pub(super) fn start_shell(&mut self, from: ShellOrigin) -> io::Result<()> {
        for bell in &mut self.bells {
            bell.reset(&self.dir);
        }
        self.phase = ShellPhase::Missing;
        let program = &self.config.shell;
        let shell = Shell::start(program, self.config.directory.as_deref(), &self.mask, &mut self.proc)?;
        let lines = match from {
            ShellOrigin::LastState => self.words.start(Some((self.snapshot.number, &self.snapshot.cwd))),
            ShellOrigin::Fresh => {
                self.dir.make_state(0);
                self.words.start(None)
            }
        };
        shell.write(&lines)?;
        if matches!(from, ShellOrigin::Fresh) {
            self.status = 0;
            if let Some(cwd) = shell.directory() {
                self.snapshot.cwd = cwd;
            }
            let old = std::mem::replace(&mut self.snapshot.number, 0);
            if old != 0 {
                self.dir.remove_state(old);
            }
        }
        self.shell = Some(shell);
        self.phase = ShellPhase::Starting(Instant::now() + READY);
        // A child may have ended while SIGCHLD was not blocked.
        self.reap();
        Ok(())
    }

    /// Starts the next shell after the last one ended. A failure shows in the next command.
    pub(super) fn restart_shell(&mut self, from: ShellOrigin) {
        if self.start_shell(from).is_err() {
            self.phase = ShellPhase::Missing;
        }
    }

    /// Kills a shell that does not report in time, and starts another one with the last state.
    pub(super) fn give_up_shell(&mut self) {
        let was_starting = matches!(self.phase, ShellPhase::Starting(_));
        if let Some(shell) = self.shell.take() {
            shell.kill();
        }
        if was_starting {
            self.phase = ShellPhase::Missing;
        } else {
            self.lost = Some(128 + 9);
            self.restart_shell(ShellOrigin::LastState);
        }
    }

    /// Acts on the end of the shell.
    pub(super) fn shell_ended(&mut self, code: i32) {
        self.shell = None;
        match &mut self.phase {
            ShellPhase::Busy(running) => running.shell_code = Some(code),
            ShellPhase::Starting(_) | ShellPhase::Missing => self.phase = ShellPhase::Missing,
            ShellPhase::Ready | ShellPhase::Settling(..) => {
                self.lost = Some(code);
                self.restart_shell(ShellOrigin::Fresh);
            }
        }
    }

    /// Acts on the steps that the shell has done since the last look.
    pub(super) fn take_steps(&mut self) {
        let [bell, whole, ready] = &mut self.bells;
        if bell.has_rung() {
            bell.reset(&self.dir);
            if let ShellPhase::Busy(running) = &mut self.phase {
                running.status = running.status.or(self.dir.take_status(running.number));
            }
        }
        if !ready.has_rung() {
            return;
        }
        ready.reset(&self.dir);
        // The shell rings this one before it rings that it is ready.
        let is_whole = whole.has_rung();
        whole.reset(&self.dir);
        match &mut self.phase {
            ShellPhase::Starting(_) => self.become_ready(),
            ShellPhase::Settling(number, _) => {
                let number = *number;
                self.settled(number, is_whole);
            }
            // The end of the command is seen in the next turn.
            ShellPhase::Busy(running) => running.has_settled = Some(is_whole),
            ShellPhase::Missing | ShellPhase::Ready => {}
        }
    }

    /// Takes over the state that the shell has written after a command.
    pub(super) fn settled(&mut self, number: u64, is_complete: bool) {
        if is_complete && self.dir.is_state_empty(number) {
            // A function has the name of the builtin that every line needs.
            self.dir.remove_state(number);
            self.give_up_shell();
            return;
        }
        if is_complete {
            let old = std::mem::replace(&mut self.snapshot.number, number);
            self.dir.remove_state(old);
        } else {
            self.dir.remove_state(number);
        }
        self.become_ready();
    }

    fn become_ready(&mut self) {
        if let Some(cwd) = self.shell.as_ref().and_then(Shell::directory) {
            self.snapshot.cwd = cwd;
        }
        self.family.note_elders(&mut self.proc);
        self.phase = ShellPhase::Ready;
    }
}
