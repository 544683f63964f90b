//! Ends a sandbox whose supervisor is dead.

use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

use penfold_cgroup::Limits;
use penfold_state::{Record, Registry, StateError, recovery};
use penfold_teardown::{Cause, Findings, Level};
use rustix::event::Timespec;

use super::{Launcher, LauncherError, SupervisorHandle};
use crate::outcome::{Outcome, Report, Totals};
use crate::poll::poll_or_pause;
use crate::takeover::take_over;

impl Launcher {
    /// Handles the death of a supervisor that sent no outcome.
    pub(super) fn supervisor_died(&mut self) -> Result<Outcome, LauncherError> {
        if matches!(self.supervisor, SupervisorHandle::Remote) {
            return Err(self.wait_error(io::ErrorKind::UnexpectedEof.into()));
        }
        if let SupervisorHandle::Direct { parts, .. } = &mut self.supervisor
            && let Some(parts) = parts.take()
        {
            self.kill_sweeper();
            return Ok(take_over(*parts));
        }
        self.recover()
    }

    /// Ends the sandbox from its record, after both standby and supervisor died.
    fn recover(&self) -> Result<Outcome, LauncherError> {
        Self::reap();
        let id = self.id();
        let lost = |source| LauncherError::Lost { id: id.clone(), source };
        let registry = Registry::open_existing(&self.settings.state_root).ok().flatten();
        let findings = match registry {
            Some(registry) => {
                let record = self.take_record(&registry).map_err(|error| lost(io::Error::other(error)))?;
                match record {
                    Some(record) => recovery::recover_sandbox(record, false, self.settings.patience, None),
                    None => recovery::recover_unrecorded(
                        &id,
                        false,
                        self.settings.patience,
                        Some(&self.settings.state_root),
                    ),
                }
            }
            None => recovery::recover_unrecorded(
                &id,
                false,
                self.settings.patience,
                Some(&self.settings.state_root),
            ),
        };
        let findings = findings.map_err(lost)?;
        Self::reap();
        Ok(Outcome {
            report: self.lost_report(findings),
            totals: Totals::default(),
            teller: 0,
            of_exec: false,
            exec: None,
            unwritten: None,
            name_holder: None,
        })
    }

    /// Takes over the record once the last holder of its lock has died: our init may die later than the others.
    fn take_record(&self, registry: &Registry) -> Result<Option<Record>, StateError> {
        let begun = Instant::now();
        loop {
            let record = registry.take_orphan(&self.id())?;
            let has_ended = || {
                let files = registry.look(&self.id()).ok().flatten();
                files.is_some_and(|files| files.has_ended() && files.lock().is_free())
            };
            if record.is_some()
                || !registry.holds(&self.id())
                || has_ended()
                || begun.elapsed() > self.settings.patience
            {
                return Ok(record);
            }
            let _ = poll_or_pause(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 5_000_000 }));
        }
    }

    fn lost_report(&self, findings: Findings) -> Report {
        Report {
            life: None,
            schema: penfold_teardown::report::SCHEMA,
            id: self.id(),
            name: None,
            labels: BTreeMap::new(),
            command: Vec::new(),
            level: Level::Subreaper,
            cause: Cause::Lost,
            exit: None,
            limits: Limits::default(),
            failure: None,
            started_at_ms: 0,
            duration_ms: 0,
            missing: Vec::new(),
            weaker: None,
            running: Vec::new(),
            leaks: Vec::new(),
            objects: Vec::new(),
            engine_clients: Vec::new(),
            omitted: None,
            by: None,
            findings,
        }
    }
}
