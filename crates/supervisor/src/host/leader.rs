//! What tells the supervisor of its leader.

use std::io::ErrorKind;

use penfold_state::state::Status;
use penfold_teardown::Cause;
use penfold_teardown::lifecycle::Event;

use super::Host;
use crate::launch::{Interruption, News, Starting};
use crate::outcome::ExitStatus;
use crate::policy::Policy;
use crate::supervised::has_ended;
use crate::wire::{self, Answer};

/// The first process of a sandbox, by what tells of it.
pub(crate) enum Leader {
    /// A child of this process. The link tells whether it becomes its program; then there is none any more.
    Child(Option<Starting>),
    /// A child of our init in a pid namespace. The link to our init tells of it until both have ended.
    NamespaceInit(Option<Starting>),
    /// A process that penfold did not start. Its pidfd tells when it has ended, and nothing tells how.
    Adopted {
        /// It has not been told so far.
        lives: bool,
    },
}

impl Leader {
    /// The link, if there is one.
    pub(super) fn link(&self) -> Option<&Starting> {
        match self {
            Leader::Child(link) | Leader::NamespaceInit(link) => link.as_ref(),
            Leader::Adopted { .. } => None,
        }
    }

    /// Closes the link.
    fn close(&mut self) {
        match self {
            Leader::Child(link) | Leader::NamespaceInit(link) => *link = None,
            Leader::Adopted { .. } => {}
        }
    }

    /// Closes a link that tells nothing after the leader has become its program.
    fn close_unless_of_init(&mut self) {
        if let Leader::Child(link) = self {
            *link = None;
        }
    }
}

impl Host {
    /// What follows from something that happened before the leader could be let go: it never is.
    pub(crate) fn interrupted(&mut self, interruption: Interruption) {
        // The command never runs. At level pidns it goes with our init, and nobody else can tell how.
        if matches!(self.leader, Leader::NamespaceInit(_)) {
            self.status = Some(ExitStatus::Signal(rustix::process::Signal::KILL.as_raw()));
        }
        let event = match interruption {
            Interruption::Limit => self.sandbox.decide(|policy| policy.time_out(Cause::Timeout)),
            Interruption::Terminated(carried) => self.sandbox.decide(|policy| policy.terminated(carried)),
            Interruption::Launcher => self.sandbox.decide(Policy::launcher_gone),
            Interruption::Standby => self.sandbox.decide(|policy| policy.kill(Cause::Supervisor)),
            Interruption::Asked(request) => self.sandbox.act(&request).0,
        };
        let event = event.or_else(|| self.sandbox.decide(|policy| policy.kill(Cause::Owner)));
        self.due = event.or(Some(Event::KillRequested));
    }

    /// Hears news over the link.
    pub(super) fn take_news(&mut self) -> Option<Event> {
        let news = self.leader.link()?.news();
        match news {
            // Its leaf was killed before it became its program, and that looks the same.
            Ok(Some(News::Running)) if self.sandbox.policy.is_ending() => {
                self.leader.close_unless_of_init();
                None
            }
            Ok(Some(News::Running)) => {
                self.leader.close_unless_of_init();
                self.runs();
                Some(Event::Started)
            }
            Ok(Some(News::Failed(failure))) => {
                self.leader.close();
                self.failure = Some(failure);
                Some(Event::StartFailed)
            }
            Ok(Some(News::Ended(status))) => {
                self.status = Some(status);
                self.due = Some(Event::LeaderExited);
                None
            }
            Ok(Some(News::Stopped(signal))) => {
                self.leader_stopped(signal);
                None
            }
            Ok(Some(News::Continued)) => {
                self.wake_launcher();
                None
            }
            Ok(None) => None,
            // Our init was killed, or cannot be heard; what it held in its namespace may still take a while to go.
            Err(error) => {
                self.leader.close();
                // At the end of the link all was heard. Else the end of our init tells how the leader ended only if that
                // lives until then.
                self.unheard = error.kind() != ErrorKind::UnexpectedEof
                    && self.sandbox.leader.as_ref().is_none_or(has_ended);
                self.sandbox.decide(|policy| policy.kill(Cause::Supervisor))
            }
        }
    }

    /// The root of an adopted tree has ended.
    pub(super) fn root_ended(&mut self) {
        self.leader = Leader::Adopted { lives: false };
        self.due = Some(Event::LeaderExited);
    }

    /// How the leader ended: what our init says of it, or how the process in its place was `reaped`.
    pub(super) fn status_of(&self, reaped: Option<ExitStatus>) -> Option<ExitStatus> {
        // One that penfold did not start tells how it ended to its parent, and to nobody else.
        let reaped = reaped.filter(|_| !self.unheard && !matches!(self.leader, Leader::Adopted { .. }));
        self.status.or(reaped)
    }

    /// The leader has become its program.
    fn runs(&mut self) {
        if !self.sandbox.prepared.setup.apart {
            return;
        }
        if let Some(detached) = &mut self.sandbox.prepared.detached {
            detached.has_run();
            if let Some((pid, _)) = self.sandbox.prepared.leader.noted() {
                self.sandbox.prepared.leader.note_running(pid);
            }
            self.sandbox.say(Status::Running);
            self.sandbox.prepared.tell_start();
        }
        penfold_sys::crash_point!("running");
        wire::offer_once(&self.sandbox.prepared.setup.channel, &Answer::Running);
    }
}
