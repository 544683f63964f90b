//! Begins commands, ends them, and keeps what they leave.

use std::os::fd::AsFd;
use std::time::Instant;

use super::{READY, SessionHost, ShellOrigin, ShellPhase};
use penfold_state::exit_codes::NOT_EXECUTABLE;
use rustix::fs::AtFlags;

use crate::command::{QueuedCommand, RunningCommand, not_begun};
use crate::dir::write_end;
use crate::interrupt::Interrupt;
use crate::protocol::{CommandEnd, EndKind, KEPT_COMMANDS, SessionAnswer};
use crate::script::CommandParts;
use crate::shell::Shell;

/// The number of checks in a row after which a shell that waits for lines has lost those of its command.
const LOST_AFTER: u32 = 3;

impl SessionHost {
    /// Begins the next command if the shell waits.
    pub(super) fn begin_next(&mut self) {
        while !self.queue.is_empty() {
            match self.phase {
                ShellPhase::Missing => {
                    if let Err(error) = self.start_shell(ShellOrigin::Fresh) {
                        self.fail_first(&format!("the shell cannot be started: {error}"));
                    }
                }
                ShellPhase::Ready => {
                    let Some(queued) = self.queue.pop_front() else { return };
                    if let Some(code) = self.lost.take() {
                        self.end(not_begun(queued.number, EndKind::ShellExited, code, None));
                    } else {
                        self.begin(&queued);
                    }
                }
                _ => return,
            }
        }
    }

    fn fail_first(&mut self, reason: &str) {
        if let Some(queued) = self.queue.pop_front() {
            self.end(not_begun(
                queued.number,
                EndKind::StartFailed,
                i32::from(NOT_EXECUTABLE),
                Some(reason.to_owned()),
            ));
        }
    }

    fn begin(&mut self, queued: &QueuedCommand) {
        let number = queued.number;
        self.dir.make_state(number);
        let opened = RunningCommand::open(&self.dir, &mut self.fifos, queued);
        let running = match opened {
            Ok(running) => running,
            Err(error) => {
                self.dir.remove_state(number);
                let reason = format!("the command's files cannot be made: {error}");
                self.end(not_begun(number, EndKind::StartFailed, i32::from(NOT_EXECUTABLE), Some(reason)));
                return;
            }
        };
        let (out, err) = running.fifos();
        let line = CommandParts { number, is_wrapped: queued.is_wrapped, last: self.status, out, err };
        let written = self.shell.as_ref().map(|shell| shell.write(&self.words.command(line)));
        self.phase = ShellPhase::Busy(Box::new(running));
        if !matches!(written, Some(Ok(()))) {
            self.replace_shell();
        }
        self.connections.notify_watchers(number, &SessionAnswer::Began { number });
    }

    /// Acts on the deadlines of the command that runs.
    pub(super) fn look_at_running(&mut self, now: Instant) {
        let ShellPhase::Busy(running) = &mut self.phase else { return };
        if running.interrupt.is_none() {
            if running.timeout_at.is_some_and(|at| at <= now) && !running.has_returned() {
                self.interrupt(EndKind::TimedOut);
            } else if running.check_at <= now && !running.has_returned() {
                self.check_shell();
            }
            return;
        }
        let shell = self.shell.as_ref().map(Shell::pid);
        let Some(interrupt) = &mut running.interrupt else { return };
        if interrupt.next_look <= now {
            interrupt.look(&mut self.proc, &self.family, shell, running.since);
        }
        if interrupt.gives_up_shell() && !running.has_returned() {
            self.replace_shell();
        }
    }

    /// Begins to end the command that runs.
    pub(super) fn interrupt(&mut self, kind: EndKind) {
        let ShellPhase::Busy(running) = &mut self.phase else { return };
        if running.interrupt.is_some() || running.has_returned() {
            return;
        }
        if let Some(shell) = &self.shell {
            shell.interrupt();
        }
        let shell = self.shell.as_ref().map(Shell::pid);
        let mut interrupt = Interrupt::begin(kind, running.grace);
        interrupt.look(&mut self.proc, &self.family, shell, running.since);
        running.interrupt = Some(interrupt);
    }

    /// Checks that the shell still has the lines of its command. `set -n` makes it skip them.
    fn check_shell(&mut self) {
        let ShellPhase::Busy(running) = &mut self.phase else { return };
        let is_lost = self.shell.as_ref().is_some_and(|shell| shell.waits_for_lines(&mut self.proc));
        running.has_checked(is_lost);
        if running.lost_checks >= LOST_AFTER {
            self.replace_shell();
        }
    }

    /// Kills the shell of the command that runs.
    fn replace_shell(&mut self) {
        let ShellPhase::Busy(running) = &mut self.phase else { return };
        running.is_replaced = true;
        running.shell_code = Some(128 + 9);
        if let Some(shell) = self.shell.take() {
            shell.kill();
        }
    }

    /// Ends the command that runs if the shell has come back, and the processes of an interrupted command are gone.
    pub(super) fn finish_if_over(&mut self) {
        let ShellPhase::Busy(running) = &mut self.phase else { return };
        if !running.has_returned() {
            return;
        }
        if let Some(interrupt) = &mut running.interrupt {
            // Until it came back, the shell may have started another process.
            let shell = self.shell.as_ref().map(Shell::pid);
            if interrupt.is_gone() {
                interrupt.look(&mut self.proc, &self.family, shell, running.since);
            }
            if !interrupt.is_gone() && !interrupt.is_late() {
                return;
            }
        }
        let ShellPhase::Busy(running) = std::mem::replace(&mut self.phase, ShellPhase::Missing) else {
            return;
        };
        let mut remaining = Vec::new();
        if let Some(interrupt) = running.interrupt.as_ref().filter(|interrupt| !interrupt.is_gone()) {
            remaining = interrupt.survivors(&mut self.proc);
        }
        let has_shell = running.shell_code.is_none();
        let is_interrupted = running.interrupt.is_some();
        let (number, settled) = (running.number, running.has_settled);
        let (mut end, dir) = running.finish(&self.dir, &mut self.fifos, &mut self.drains);
        end.replaced |= !has_shell && is_interrupted;
        end.remaining = remaining;
        self.status = end.code;
        if has_shell {
            self.phase = ShellPhase::Settling(number, Instant::now() + READY);
            if let Some(is_complete) = settled {
                self.settled(number, is_complete);
            }
        } else {
            self.dir.remove_state(number);
        }
        let _ = write_end(dir.as_fd(), &end);
        let is_replaced = end.replaced;
        self.announce(end);
        for name in ["cmd", "pre"] {
            let _ = rustix::fs::unlinkat(&dir, name, AtFlags::empty());
        }
        if !has_shell {
            self.restart_shell(if is_replaced { ShellOrigin::LastState } else { ShellOrigin::Fresh });
        }
    }

    /// Writes the end of a command that has not begun, and sends it.
    pub(super) fn end(&mut self, end: CommandEnd) {
        if let Ok(dir) = self.dir.open_command(end.number) {
            let _ = write_end(dir.as_fd(), &end);
        }
        self.announce(end);
    }

    fn announce(&mut self, end: CommandEnd) {
        let number = end.number;
        self.connections.notify_watchers(number, &SessionAnswer::Ended(Box::new(end)));
        self.kept.push_back(number);
        // A client that waited for an end reads the log next, however many commands end meanwhile.
        let mut excess = self.kept.len().saturating_sub(KEPT_COMMANDS);
        let (connections, dir) = (&self.connections, &self.dir);
        self.kept.retain(|&kept| {
            let stays = excess == 0 || connections.may_read(kept);
            excess = excess.saturating_sub(1);
            if !stays {
                let _ = dir.remove_command(kept);
            }
            stays
        });
    }
}
