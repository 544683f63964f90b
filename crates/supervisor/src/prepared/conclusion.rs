//! Tells of the end of a sandbox: writes the report, counts the end, keeps the history, remembers survivors.

use penfold_state::counters::{Counts, Mode};
use penfold_state::events::{About, EventKind, Journal};
use penfold_state::{forget_survivors, history, mark_unkillable, remember_survivors};
use penfold_teardown::{Findings, Level};

use super::Prepared;
use crate::outcome::{Outcome, Report};
use crate::report_file::{self, StatusLine};
use crate::setup::Setup;

impl Prepared {
    /// Tells whether the report has a reader, who wants all details. Of an exec in a jail, only the details name the orphans: they are
    /// children of the jail's first process.
    pub(crate) fn is_reported(&self) -> bool {
        let spec = &self.setup.spec;
        let is_jailed_exec = self.is_exec && spec.jail.is_some();
        is_jailed_exec
            || spec.report.is_some()
            || spec.status.is_some()
            || self.detached.is_some()
            || self.recorded.is_some()
    }

    /// Writes the report and returns the short version for the launcher.
    pub(crate) fn conclude(&mut self, report: &Report) -> Outcome {
        self.remember(&report.findings);
        if let Some(detached) = &mut self.detached {
            detached.conclude(report);
        }
        if let Some(recorded) = &mut self.recorded {
            recorded.conclude(report);
        }
        conclude(&self.setup, report)
    }

    /// Remembers the survivors before anybody is told of them: this process may be killed. Forgets them once nothing is left.
    ///
    /// The survivors of an exec are members of its sandbox, and are remembered as those of the sandbox.
    pub(crate) fn remember(&mut self, findings: &Findings) {
        // There, the path of the state root and the pids mean something else.
        let is_inside = self.is_exec && self.level == Level::Pidns;
        let spec = &self.setup.spec;
        // A resource that cannot be released is in the record already.
        if findings.may_have_processes() && !is_inside {
            // What cannot be written is known to this process, which stays as long as they live.
            remember_survivors(&spec.state_root, &spec.id.short(), &findings.survivors);
            if !self.is_exec {
                mark_unkillable(&spec.state_root, &spec.id.short());
            }
            self.remembers = true;
        } else if findings.verified && !self.is_exec && (self.remembers || self.detached.is_some()) {
            forget_survivors(&spec.state_root, &spec.id.short());
        }
    }

    /// Adds the end of the sandbox to the counters of the state root: once, also if survivors end after they were reported.
    ///
    /// Call this after the answer. If this process is killed in between, the end is not counted, and never twice.
    pub(crate) fn count(&mut self, report: &Report, is_exec: bool) {
        let mode = if self.detached.is_some() { Mode::Detached } else { Mode::Foreground };
        let counts = match is_exec {
            // In a mount namespace of the sandbox, the path of the state root means another directory.
            true if self.level == Level::Pidns => None,
            true => Counts::of_exec(&report.findings),
            false => Counts::of_end(mode, report.cause, &report.findings),
        };
        if let Some(counts) = counts.filter(|_| !self.counted) {
            self.counted = true;
            let _ = counts.add_to(&self.setup.spec.state_root);
        }
    }

    /// Keeps the report of a foreground sandbox with a record in the history, if the command failed or something was left; writes an
    /// event if something was left.
    ///
    /// Call this after the answer, as [`Prepared::count`]. The launcher of a verified end still waits for the exit of this process.
    pub(crate) fn keep(&mut self, report: &Report) {
        if self.detached.is_some() || self.recorded.is_some() {
            return;
        }
        if self.nested.is_some() {
            // A report that cannot be kept changes nothing.
            let _ = history::keep(&self.setup.spec.state_root, report);
        }
        if self.nested.is_some() || self.setup.spec.event_log.is_some() {
            self.tell_leak(report);
        }
    }

    /// Writes an event, once, if something was left. A detached sandbox has events of its whole life.
    fn tell_leak(&mut self, report: &Report) {
        let leak = EventKind::leak(&report.findings, report.findings.strays());
        if let Some(leak) = leak.filter(|_| !self.leak_told) {
            self.leak_told = true;
            let about = About {
                id: report.id.clone(),
                name: report.name.clone(),
                labels: report.labels.clone(),
                life: None,
            };
            let spec = &self.setup.spec;
            Journal::new(&spec.state_root, about).with_event_log(spec.event_log.clone()).publish([leak]);
        }
    }
}

/// Writes the report to its file and to the status descriptor, and returns the short version for the launcher.
pub(super) fn conclude(setup: &Setup, report: &Report) -> Outcome {
    let spec = &setup.spec;
    let unwritten = spec.report.as_ref().and_then(|file| report_file::write(file, report).err());
    let line = StatusLine::Ended { schema: report.schema, report };
    if let Some(file) = &spec.status {
        // A caller that has closed the descriptor has no use for the report.
        let _ = report_file::write_status(file, &line);
    }
    Outcome::of(report, unwritten.map(|error| error.to_string()))
}
