//! What happens before members are killed: time to end by themselves, the stop command, the polite signal.

use std::time::Instant;

use super::due::LOOK_LAST;
use super::{Drive, Linger, StopPolicy};
use crate::members::StopCommandState;

/// The name of the step that runs the stop command.
const STOP_COMMAND: &str = "stop command";

impl Drive<'_> {
    /// Lets the members that the leader has left end by themselves.
    pub(super) fn linger(&mut self) {
        self.spare();
        let Linger::For(time) = self.host.linger() else {
            // Whatever ends wakes the loop.
            return;
        };
        if self.due.grace.is_none() {
            self.due.grace = Instant::now().checked_add(time);
            self.due.look_soon();
        } else {
            self.due.look_later(LOOK_LAST);
        }
    }

    /// Asks the members to end: by the stop command, then by the polite signal.
    pub(super) fn ask(&mut self) {
        self.spare();
        let first = self.begun.is_none();
        let stop_policy = self.host.stop_policy();
        if self.asks_by_command(first, &stop_policy) {
            if first {
                self.due.grace = Instant::now().checked_add(stop_policy.grace);
            }
            return;
        }
        self.describe();
        let signalled = std::mem::replace(&mut self.signalled, true);
        self.timed(!signalled, "ask", |teardown| teardown.ask(stop_policy.signal, stop_policy.spared_group));
        if first {
            self.due.grace = Instant::now().checked_add(stop_policy.grace);
        }
        if signalled {
            self.due.look_later(LOOK_LAST * 4);
        } else {
            self.due.look_soon();
        }
    }

    /// Lets the host describe the members while they are as the command left them.
    pub(super) fn describe(&mut self) {
        if !std::mem::replace(&mut self.described, true) && self.host.describes() {
            let members = self.teardown.members();
            self.host.describe(&members);
        }
    }

    /// Starts the stop command with the first look, and tells whether it, or the members that it has asked, have time
    /// left: half of the grace. The other half is for the polite signal.
    fn asks_by_command(&mut self, first: bool, stop_policy: &StopPolicy) -> bool {
        if self.signalled {
            return false;
        }
        let now = Instant::now();
        if first {
            match self.teardown.start_stop_command() {
                Ok(false) => return false,
                Ok(true) => {
                    self.begun = Some(now);
                    self.note(STOP_COMMAND, now, now.elapsed());
                }
                Err(error) => {
                    self.note_error(STOP_COMMAND, &error);
                    return false;
                }
            }
        }
        let until = self.begun.and_then(|begun| begun.checked_add(stop_policy.grace / 2)).unwrap_or(now);
        let state = self.teardown.stop_command_state();
        // Members that outlive the leader get the signal.
        let over = now >= until || (self.leader_ended && state == Some(StopCommandState::Asked));
        match state {
            Some(StopCommandState::Running | StopCommandState::Asked) if !over => {
                if first {
                    self.due.look_soon();
                } else {
                    self.due.look_later(LOOK_LAST * 4);
                }
                self.due.look = self.due.look.map(|look| look.min(until));
                true
            }
            Some(StopCommandState::Failed(failure)) => {
                self.note_error(STOP_COMMAND, &failure);
                false
            }
            Some(StopCommandState::Running) => {
                self.note_error(STOP_COMMAND, &"it still runs after half of the grace");
                false
            }
            _ => false,
        }
    }
}
