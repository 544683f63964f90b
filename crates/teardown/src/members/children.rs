//! The children of this process, also where `/proc` does not tell of them.

use std::io;

use penfold_process::Pid;
use penfold_sys::child;
use rustix::process::Signal;

use super::{Scope, Teardown};

/// As many pids above its own are tried first: most children are younger than their parent.
const NEAR: i32 = 1 << 16;
/// No kernel gives a higher pid, `PID_MAX_LIMIT`.
const HIGHEST: i32 = 1 << 22;

impl Teardown {
    /// The children of this process, alive or not yet reaped. Without a `/proc` the kernel is asked for each pid whether it is
    /// one of them: some are found each time, as long as there is any.
    pub(super) fn children(&mut self) -> io::Result<Vec<Pid>> {
        let own = rustix::process::getpid();
        if self.proc.is_blind() {
            let own = own.as_raw_pid();
            let near = child::among(own..=own.saturating_add(NEAR).min(HIGHEST));
            return Ok(if near.is_empty() { child::among(1..=HIGHEST) } else { near });
        }
        let mut children = Vec::new();
        self.proc.children(own, &mut children)?;
        Ok(children)
    }

    /// Asks the children of this process once each, where nothing else is known of the members: those below them come to us
    /// when they end. They are unreaped, so their pids are theirs.
    #[expect(clippy::disallowed_methods, reason = "an unreaped child keeps its pid")]
    pub(super) fn ask_unseen(&mut self, signal: Signal) -> io::Result<()> {
        if !self.proc.is_blind() || !matches!(self.scope, Scope::Children) {
            return Ok(());
        }
        for pid in self.children()? {
            if self.asked_unseen.insert(pid) {
                // What refuses is left to the kill.
                let _ = rustix::process::kill_process(pid, signal);
                let _ = rustix::process::kill_process(pid, Signal::CONT);
            }
        }
        Ok(())
    }
}
