//! Concludes a sandbox: writes the report, counts the end, keeps the history, remembers survivors.

use penfold_state::counters::{Counts, StartMode};
use penfold_state::events::{EventKind, EventSubject, Journal};
use penfold_state::{Spec, forget_survivors, history, mark_unkillable, remember_survivors};
use penfold_teardown::{Findings, Level};

use super::{ForegroundParts, SandboxKind, SandboxParts};
use crate::outcome::{Outcome, Report};
use crate::report_file::{self, StatusLine};
use crate::setup::Setup;

impl SandboxParts {
    /// Tells whether the report has a reader, who wants all details. Of an exec in a jail, only the details name the orphans: they are
    /// children of the jail's first process.
    pub(crate) fn is_reported(&self) -> bool {
        let spec = &self.setup.spec;
        let has_reader = spec.report.is_some() || spec.status.is_some();
        match &self.kind {
            SandboxKind::Detached(_) | SandboxKind::RecordedExec(_) => true,
            SandboxKind::Exec => has_reader || spec.jail.is_some(),
            SandboxKind::Foreground(_) => has_reader,
        }
    }

    /// Writes the report and returns the short version for the launcher.
    pub(crate) fn conclude(&mut self, report: &Report) -> Outcome {
        self.remember(&report.findings);
        match &mut self.kind {
            SandboxKind::Detached(detached) => detached.conclude(report),
            SandboxKind::RecordedExec(exec) => exec.conclude(report),
            SandboxKind::Foreground(_) | SandboxKind::Exec => {}
        }
        conclude_sandbox(&self.setup, report)
    }

    /// Remembers the survivors before anybody is told of them: this process may be killed. Forgets them once nothing is left.
    ///
    /// The survivors of an exec are members of its sandbox, and are remembered as those of the sandbox.
    pub(crate) fn remember(&mut self, findings: &Findings) {
        let is_exec = self.kind.is_exec();
        // There, the path of the state root and the pids mean something else.
        let is_inside = is_exec && self.level == Level::Pidns;
        let spec = &self.setup.spec;
        // A resource that cannot be released is in the record already.
        if findings.may_have_processes() && !is_inside {
            // What cannot be written is known to this process, which stays as long as they live.
            remember_survivors(&spec.state_root, &spec.id.short(), &findings.survivors);
            if !is_exec {
                mark_unkillable(&spec.state_root, &spec.id.short());
            }
            self.remembers_survivors = true;
        } else if findings.verified
            && !is_exec
            && (self.remembers_survivors || self.kind.detached().is_some())
        {
            forget_survivors(&spec.state_root, &spec.id.short());
        }
    }

    /// Adds the end of the sandbox to the counters of the state root: once, also if survivors end after they were reported.
    ///
    /// Call this after the answer. If this process is killed in between, the end is not counted, and never twice.
    pub(crate) fn count(&mut self, report: &Report) {
        let counts = match &self.kind {
            // In a mount namespace of the sandbox, the path of the state root means another directory.
            SandboxKind::Exec | SandboxKind::RecordedExec(_) if self.level == Level::Pidns => None,
            SandboxKind::Exec | SandboxKind::RecordedExec(_) => Counts::of_exec(&report.findings),
            SandboxKind::Foreground(_) => {
                Counts::of_end(StartMode::Foreground, report.cause, &report.findings)
            }
            SandboxKind::Detached(_) => Counts::of_end(StartMode::Detached, report.cause, &report.findings),
        };
        if let Some(counts) = counts.filter(|_| !self.is_counted) {
            self.is_counted = true;
            let _ = counts.add_to(&self.setup.spec.state_root);
        }
    }

    /// Keeps the report of a foreground sandbox with a record in the history, if the command failed or something was left; writes an
    /// event if something was left.
    ///
    /// Call this after the answer, as [`SandboxParts::count`]. The launcher of a verified end still waits for the exit of this process.
    pub(crate) fn keep(&mut self, report: &Report) {
        let SandboxKind::Foreground(foreground) = &mut self.kind else { return };
        let spec = &self.setup.spec;
        let has_record = foreground.nested.is_some();
        if has_record {
            // A report that cannot be kept changes nothing.
            let _ = history::keep_report(&spec.state_root, report);
        }
        if has_record || spec.event_log.is_some() {
            foreground.publish_leak(spec, report);
        }
    }
}

impl ForegroundParts {
    /// Publishes an event, once, if something was left. A detached sandbox has events of its whole life.
    fn publish_leak(&mut self, spec: &Spec, report: &Report) {
        let leak = EventKind::leak(&report.findings, report.findings.strays());
        if let Some(leak) = leak.filter(|_| !self.is_leak_published) {
            self.is_leak_published = true;
            let about = EventSubject {
                id: report.id.clone(),
                name: report.name.clone(),
                labels: report.labels.clone(),
                life: None,
            };
            Journal::new(&spec.state_root, about).with_event_log(spec.event_log.clone()).publish([leak]);
        }
    }
}

/// Writes the report to its file and to the status descriptor, and returns the short version for the launcher.
pub(super) fn conclude_sandbox(setup: &Setup, report: &Report) -> Outcome {
    let spec = &setup.spec;
    let unwritten = spec.report.as_ref().and_then(|file| report_file::write_report(file, report).err());
    let line = StatusLine::Ended { schema: report.schema, report };
    if let Some(file) = &spec.status {
        // A caller that has closed the descriptor has no use for the report.
        let _ = report_file::write_status(file, &line);
    }
    Outcome::of(report, unwritten.map(|error| error.to_string()))
}
