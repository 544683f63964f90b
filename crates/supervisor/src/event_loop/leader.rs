//! The sources of news about the leader.

use std::io::ErrorKind;

use penfold_cgroup::Leaf;
use penfold_state::state::Status;
use penfold_teardown::Cause;
use penfold_teardown::lifecycle::LifecycleEvent;

use super::EventLoop;
use crate::launch::{Interruption, LeaderEvent, PendingLeader};
use crate::outcome::ExitStatus;
use crate::policy::Policy;
use crate::report_file::{self, StatusLine};
use crate::sandbox_parts::SandboxKind;
use crate::supervision::has_ended;
use crate::wire::{self, Answer};

/// The first process of a sandbox, by its source of news.
pub(crate) enum LeaderSource {
    /// A child of this process. The link reports the result of execve(2) and is then closed.
    Child(Option<PendingLeader>),
    /// A child of our init in a pid namespace. The link to our init reports its changes until both have ended.
    NamespaceInit(Option<PendingLeader>),
    /// A process that penfold did not start. Its pidfd reports its end, and no source reports its exit.
    Adopted {
        /// The end has not been reported so far.
        lives: bool,
    },
}

impl LeaderSource {
    /// Returns the link, if there is one.
    pub(super) fn link(&self) -> Option<&PendingLeader> {
        match self {
            LeaderSource::Child(link) | LeaderSource::NamespaceInit(link) => link.as_ref(),
            LeaderSource::Adopted { .. } => None,
        }
    }

    /// Closes the link.
    fn close(&mut self) {
        match self {
            LeaderSource::Child(link) | LeaderSource::NamespaceInit(link) => *link = None,
            LeaderSource::Adopted { .. } => {}
        }
    }

    /// Closes the link of a child, which reports nothing after execve(2).
    fn close_unless_of_init(&mut self) {
        if let LeaderSource::Child(link) = self {
            *link = None;
        }
    }
}

impl EventLoop {
    /// Handles an event from before the leader's release. The leader is never released.
    pub(crate) fn interrupted(&mut self, interruption: Interruption) {
        // The command never runs. At level pidns the leader dies with our init, and no other process can report its
        // exit.
        if matches!(self.leader, LeaderSource::NamespaceInit(_)) {
            self.status = Some(ExitStatus::Signal(rustix::process::Signal::KILL.as_raw()));
        }
        let event = match interruption {
            Interruption::Limit => self.sandbox.decide(|policy| policy.time_out(Cause::Timeout)),
            Interruption::Terminated(carried) => self.sandbox.decide(|policy| policy.terminated(carried)),
            Interruption::Launcher => self.sandbox.decide(Policy::launcher_gone),
            Interruption::Standby => self.sandbox.decide(|policy| policy.kill(Cause::Supervisor)),
            Interruption::Requested(request) => self.sandbox.handle_launcher(request),
        };
        if event.is_none() {
            let _ = self.sandbox.decide(|policy| policy.kill(Cause::Owner));
        }
        // A stop is a kill here: a leader that waits for its release takes no polite signal.
        self.due = Some(LifecycleEvent::KillRequested);
    }

    /// Receives an event of the leader over the link.
    pub(super) fn take_leader_event(&mut self) -> Option<LifecycleEvent> {
        let event = self.leader.link()?.event();
        match event {
            // A leaf killed before the leader's execve(2) looks the same as a started leader.
            Ok(Some(LeaderEvent::Running)) if self.sandbox.policy.is_ending() => {
                self.leader.close_unless_of_init();
                None
            }
            Ok(Some(LeaderEvent::Running)) => {
                self.leader.close_unless_of_init();
                self.leader_runs();
                Some(LifecycleEvent::Started)
            }
            Ok(Some(LeaderEvent::Failed(failure))) => {
                self.leader.close();
                self.failure = Some(failure);
                Some(LifecycleEvent::StartFailed)
            }
            Ok(Some(LeaderEvent::Ended(status))) => {
                self.status = Some(status);
                self.due = Some(LifecycleEvent::LeaderExited);
                None
            }
            Ok(Some(LeaderEvent::Stopped(signal))) => {
                self.leader_stopped(signal);
                None
            }
            Ok(Some(LeaderEvent::Continued)) => {
                self.wake_launcher();
                None
            }
            Ok(None) => None,
            // Our init was killed, or its link failed. Processes in its namespace may still take time to die.
            Err(error) => {
                self.leader.close();
                // EOF means that all messages were received. After another error, the end of our init tells the
                // leader's exit only if the leader still lives: a living leader dies with our init.
                self.exit_lost = error.kind() != ErrorKind::UnexpectedEof
                    && self.sandbox.leader.as_ref().is_none_or(has_ended);
                let cause = if self.is_out_of_memory() { Cause::Memory } else { Cause::Supervisor };
                self.sandbox.decide(|policy| policy.kill(cause))
            }
        }
    }

    /// Tells whether the kernel has killed everything in the leaf at its memory limit, our init included.
    fn is_out_of_memory(&self) -> bool {
        let parts = &self.sandbox.parts;
        let limited = parts.setup.spec.limits.memory_bytes.is_some();
        let leaf = parts.leaf_path.as_deref().filter(|_| limited).map(Leaf::open);
        matches!(leaf, Some(Ok(Some(leaf))) if leaf.shortages().at_limit > 0)
    }

    /// Handles the end of an adopted tree's root.
    pub(super) fn root_ended(&mut self) {
        self.leader = LeaderSource::Adopted { lives: false };
        self.due = Some(LifecycleEvent::LeaderExited);
    }

    /// Returns the exit of the leader: reported by our init, or of the `reaped` process in the leader's place.
    pub(super) fn status_of(&self, reaped: Option<ExitStatus>) -> Option<ExitStatus> {
        // The exit status of an adopted process goes to its parent only.
        let reaped =
            reaped.filter(|_| !self.exit_lost && !matches!(self.leader, LeaderSource::Adopted { .. }));
        self.status.or(reaped)
    }

    /// Handles the leader's successful execve(2).
    fn leader_runs(&mut self) {
        self.write_running();
        let parts = &mut self.sandbox.parts;
        let answer = match &mut parts.kind {
            SandboxKind::Foreground(_) => return,
            SandboxKind::Detached(detached) => {
                detached.mark_running();
                if let Some((pid, _)) = parts.leader.load() {
                    parts.leader.store_running(pid);
                }
                self.sandbox.write_status(Status::Running);
                self.sandbox.parts.publish_start();
                Answer::Running
            }
            SandboxKind::Exec => Answer::Running,
            SandboxKind::RecordedExec(exec) => {
                let is_jailed = parts.setup.spec.jail.is_some();
                let leader = exec.mark_running(self.sandbox.leader_pid, is_jailed);
                Answer::ExecStarted { number: exec.number(), leader }
            }
        };
        penfold_sys::crash_point!("running");
        wire::offer_once(&self.sandbox.parts.setup.channel, &answer);
    }

    /// Writes to the status descriptor that the command runs.
    fn write_running(&self) {
        let spec = &self.sandbox.parts.setup.spec;
        let (Some(file), Some(leader)) = (&spec.status, self.sandbox.leader_pid) else { return };
        let line = StatusLine::Running {
            schema: penfold_teardown::report::SCHEMA,
            id: spec.id.short(),
            root: &spec.state_root,
            pid: leader.as_raw_pid(),
            start_time: self.sandbox.parts.leader_id.map(|id| id.start),
        };
        // A reader that is gone misses only this line.
        let _ = report_file::write_status(file, &line);
    }
}
