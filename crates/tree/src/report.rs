//! What an end has found and done.

use std::fmt;
use std::process::ExitStatus;
use std::time::Duration;

use penfold_teardown::{EndedMember, Findings, Survivor};

/// What an end has found and done.
#[derive(Debug, Clone)]
#[must_use = "only `gone` tells whether something is left"]
pub struct Report {
    exit: Option<ExitStatus>,
    findings: Findings,
}

impl Report {
    pub(crate) fn new(exit: Option<ExitStatus>, findings: Findings) -> Report {
        Report { exit, findings }
    }

    /// Tells whether nothing of the tree is left; true only if that was verified.
    pub fn gone(&self) -> bool {
        self.findings.verified && self.findings.survivors.is_empty()
    }

    /// Returns how the command ended; `None` while it lives, and when other code has reaped it.
    pub fn exit(&self) -> Option<ExitStatus> {
        self.exit
    }

    /// Returns the members that had outlived the command, or left its session, and were ended here.
    pub fn strays(&self) -> impl Iterator<Item = &EndedMember> {
        self.findings.strays()
    }

    /// Returns all members that were ended here, strays too.
    pub fn ended(&self) -> &[EndedMember] {
        &self.findings.ended
    }

    /// Returns what is left, or may be, with the reason; empty if the tree is [`gone`](Report::gone).
    pub fn survivors(&self) -> &[Survivor] {
        &self.findings.survivors
    }

    /// Returns how long the end took.
    pub fn took(&self) -> Duration {
        Duration::from_micros(self.findings.took_us)
    }

    /// Returns all findings, for example to serialise them.
    pub fn findings(&self) -> &Findings {
        &self.findings
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.gone() { "gone" } else { "not verified to be gone" })?;
        for survivor in self.survivors() {
            write!(f, "; {survivor}")?;
        }
        for stray in self.strays() {
            let name = stray.command.as_deref().unwrap_or(&stray.name);
            write!(f, "; ended stray {} `{name}`", stray.pid)?;
        }
        Ok(())
    }
}
