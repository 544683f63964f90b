//! The resources of a sandbox, created before the leader is started.

mod conclusion;
mod creation;
mod limited_leaf;
mod owned_resources;
mod record;
mod sandbox_kind;

use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use penfold_cgroup::Leaf;
use penfold_process::{Pid, ProcFs, ProcessId};
use penfold_state::events::EventKind;
use penfold_state::intent::shorten_command;
use penfold_state::state::Status;
use penfold_state::time::whole_millis;
use penfold_state::{Contain, Life, SparePlan, spared};
use penfold_sys::alarm::Alarm;
use penfold_teardown::lifecycle::Phase;
use penfold_teardown::{
    Cause, Findings, Level, MemberScope, Resource, SparePolicy, StopPolicy, Teardown, drive_teardown,
};

use self::creation::{NewParts, has_room, refuse_start};
pub(crate) use self::sandbox_kind::{ForegroundParts, SandboxKind};
use crate::immediate_kill::ImmediateKill;
use crate::leader_cell::LeaderCell;
use crate::outcome::{ExitStatus, Outcome, Report, StartFailure};
use crate::setup::Setup;

/// The parts that every kind of sandbox has, and its kind. The supervisor and its parent both hold them, so either can end the
/// sandbox alone.
pub(crate) struct SandboxParts {
    pub(crate) setup: Setup,
    pub(crate) kind: SandboxKind,
    pub(crate) proc: Option<ProcFs>,
    pub(crate) leaf: Option<Leaf>,
    /// The path of the leaf, also after the teardown has taken `leaf`.
    pub(crate) leaf_path: Option<PathBuf>,
    pub(crate) level: Level,
    /// In the order of acquisition.
    pub(crate) resources: Vec<Box<dyn Resource>>,
    /// The features that the host does not offer and that would strengthen the guarantee.
    pub(crate) missing: Vec<String>,
    /// The reason why the level is not a stronger one.
    pub(crate) weaker: Option<String>,
    pub(crate) started_at: SystemTime,
    /// The members that the end leaves alone.
    spare: Option<SparePlan>,
    /// A timer that sends SIGCONT to this process, and its expiry. A member may stop both processes that watch each
    /// other.
    pub(crate) alarm: Option<(Alarm, Instant)>,
    /// The leader's pid, written by the supervisor and read after a takeover.
    pub(crate) leader: LeaderCell,
    /// The leader, if this was noted before it ran.
    pub(crate) leader_id: Option<ProcessId>,
    /// The end is in the counters of the state root.
    is_counted: bool,
    /// The state root remembers survivors.
    remembers_survivors: bool,
}

impl SandboxParts {
    /// Creates the resources of the sandbox: record, scratch directory, leaf.
    ///
    /// # Errors
    /// The outcome of a sandbox that never started. Resources created so far are removed again, or named in the
    /// outcome.
    pub(crate) fn create(mut setup: Setup) -> Result<SandboxParts, Box<Outcome>> {
        let started_at = SystemTime::now().checked_sub(setup.began.elapsed()).unwrap_or(UNIX_EPOCH);
        let mut resources: Vec<Box<dyn Resource>> = Vec::new();
        if let Some(name) = setup.spec.claim.take() {
            resources.push(Box::new(name));
        }
        if let Err(error) = has_room(&setup) {
            return Err(Box::new(refuse_start(&setup, error.into(), resources)));
        }
        let limited = match limited_leaf::find_place(&mut setup) {
            Ok(limited) => limited,
            Err(error) => return Err(Box::new(refuse_start(&setup, error.into(), resources))),
        };
        let launch = setup.spec.detach.as_mut().and_then(|detach| detach.launch.take());
        match NewParts::make(&setup, limited, launch, &mut resources) {
            Ok(new) => {
                let level = match (setup.spec.contain, &new.leaf) {
                    (Contain::Pidns, _) => Level::Pidns,
                    (_, Some(_)) => Level::Cgroup,
                    (_, None) => Level::Subreaper,
                };
                Ok(SandboxParts {
                    setup,
                    kind: new.kind,
                    proc: Some(new.proc),
                    leaf_path: new.leaf.as_ref().map(|leaf| leaf.path().to_owned()),
                    leaf: new.leaf,
                    level,
                    resources,
                    missing: new.missing,
                    weaker: new.weaker,
                    started_at,
                    spare: new.spare,
                    alarm: None,
                    leader: new.leader,
                    leader_id: None,
                    is_counted: false,
                    remembers_survivors: false,
                })
            }
            Err(refusal) => Err(Box::new(refuse_start(&setup, refusal, resources))),
        }
    }

    /// Returns the resources of an exec: only a leaf below the sandbox's leaf.
    ///
    /// # Errors
    /// The reason, as a sentence.
    pub(crate) fn for_exec(
        setup: Setup,
        leaf: Option<Leaf>,
        level: Level,
        kind: SandboxKind,
    ) -> Result<SandboxParts, String> {
        // An exec ends as a whole, whatever the rules of the sandbox.
        let spare = setup.spec.allow_outside.then(|| SparePlan {
            rules: Vec::new(),
            home: None,
            allows_outside: true,
        });
        Ok(SandboxParts {
            setup,
            kind,
            proc: Some(ProcFs::open().map_err(|error| format!("cannot read /proc: {error}"))?),
            leaf_path: leaf.as_ref().map(|leaf| leaf.path().to_owned()),
            leaf,
            level,
            resources: Vec::new(),
            missing: Vec::new(),
            weaker: None,
            started_at: SystemTime::now(),
            spare,
            alarm: None,
            leader: LeaderCell::create()?,
            leader_id: None,
            is_counted: false,
            remembers_survivors: false,
        })
    }

    /// Writes the identities of the leader and of the processes of this sandbox to `state.json`.
    pub(crate) fn identify(
        &mut self,
        teardown: &mut Teardown,
        leader: Pid,
        standby: Option<Pid>,
        status: Status,
    ) {
        let SandboxKind::Detached(detached) = &mut self.kind else { return };
        let own = rustix::process::getpid();
        let mut id = |pid| teardown.proc().stat(pid).ok().flatten().map(|stat| stat.id());
        let supervisors = standby.into_iter().chain([own]).filter_map(&mut id).collect();
        detached.set_processes(supervisors, id(leader));
        detached.write_status(status, self.level, &self.missing);
    }

    /// Adds a supervisor to the note of a sandbox outside.
    pub(crate) fn note_supervisor(&mut self, supervisor: Pid) {
        if let (SandboxKind::Detached(detached), Some(proc)) = (&self.kind, &mut self.proc) {
            detached.note_supervisor(proc, supervisor);
        }
    }

    /// Publishes the start event.
    pub(crate) fn publish_start(&self) {
        let SandboxKind::Detached(detached) = &self.kind else { return };
        let leader = self.leader.load().map(|(pid, _)| pid.as_raw_nonzero().get());
        let life = self.setup.spec.detach.as_ref().and_then(|detach| detach.life.as_ref());
        detached.publish_events([EventKind::Start {
            command: shorten_command(words(&self.setup)),
            level: self.level,
            leader,
            restart_of: None,
            restarts: life.map(|life| life.restarts),
        }]);
    }

    /// Returns the session of the members: the leader's own session, or the launcher's.
    pub(crate) fn session_of(&self, leader: Pid) -> i32 {
        if self.setup.own_session { leader.as_raw_nonzero().get() } else { self.setup.session }
    }

    /// Returns the first deadline of the sandbox: time limit or lease.
    pub(crate) fn first_deadline(&self) -> Option<Instant> {
        let limit = self.setup.spec.timeout.and_then(|limit| self.setup.began.checked_add(limit));
        let lease = self.kind.detached().and_then(|detached| detached.lease.end());
        [limit, lease].into_iter().flatten().min()
    }

    /// Sets the alarm. Without a timer, a stopped supervisor can miss the deadline (limit 2 of SPECIFICATION.md).
    pub(crate) fn set_alarm(&mut self, at: Instant) {
        let now = Instant::now();
        if self.alarm.is_none() {
            self.alarm = Alarm::create().ok().map(|alarm| (alarm, now));
        }
        if let Some((alarm, set)) = &mut self.alarm
            && *set != at
        {
            alarm.set(at.saturating_duration_since(now));
            *set = at;
        }
    }

    /// Returns the stop policy of the spec, which applies unless a client requests another.
    pub(crate) fn stop_policy(&self) -> StopPolicy {
        let spec = &self.setup.spec;
        StopPolicy { signal: spec.signal, spared_group: None, grace: spec.grace, patience: spec.patience }
    }

    /// Makes a teardown of the members in this scope, by the rules of the sandbox.
    pub(crate) fn teardown(&mut self, proc: ProcFs, scope: MemberScope) -> Teardown {
        let mut teardown = Teardown::new(proc, self.leaf.take(), scope);
        if let Some(plan) = &self.spare {
            let spec = &self.setup.spec;
            let sparing = spared::spare_policy(plan, &spec.state_root, &spec.id.short());
            teardown.spare(SparePolicy { is_partial: self.kind.is_exec(), ..sparing });
        }
        teardown
    }

    /// Notes the leader before it runs, where that is needed: to tell when it started, although it may have ended before it is
    /// seen to run, and if members may be spared, which the leader never is.
    pub(crate) fn note_leader(&mut self, leader: Pid) {
        let spec = &self.setup.spec;
        if self.kind.is_exec() || self.spare.is_none() && spec.status.is_none() {
            return;
        }
        let stat = self.proc.as_mut().and_then(|proc| proc.stat(leader).ok().flatten());
        let Some(id) = stat.map(|stat| stat.id()) else { return };
        self.leader_id = Some(id);
        if self.spare.is_none() {
            return;
        }
        if let Err(error) = spared::note_leader(&spec.state_root, &spec.id.short(), id) {
            self.missing.push(format!("no note of spared processes: {error}"));
        }
    }

    /// Builds the report.
    pub(crate) fn report(
        &self,
        cause: Cause,
        exit: Option<ExitStatus>,
        failure: Option<StartFailure>,
        mut findings: Findings,
    ) -> Report {
        if let SandboxKind::Detached(detached) = &self.kind {
            detached.execs.unmark_strays(&mut findings.ended);
        }
        if let Some(nested) = self.kind.nested() {
            nested.merge_into(&mut findings.ended);
        }
        Report {
            level: self.level,
            cause,
            exit,
            failure,
            missing: self.missing.clone(),
            weaker: self.weaker.clone(),
            started_at_ms: millis_since_1970(self.started_at),
            ..blank(&self.setup, findings)
        }
    }

    /// Returns the leaf below which leaves of execs are made, if the level has one.
    pub(crate) fn leaf_of_execs(&self) -> Option<PathBuf> {
        self.leaf_path.clone().filter(|_| self.level != Level::Subreaper)
    }

    /// Finds nested sandboxes when the end begins.
    pub(crate) fn find_nested(&mut self) {
        if let Some(nested) = self.kind.nested_mut() {
            nested.find_at_end();
        }
    }

    /// Ends a sandbox whose supervisor could not be created.
    pub(crate) fn give_up(mut self, reason: String) -> Outcome {
        let mut resources = std::mem::take(&mut self.resources);
        let findings = match self.proc.take() {
            Some(proc) => {
                let mut teardown = self.teardown(proc, MemberScope::Children);
                let mut host = ImmediateKill::new(self.stop_policy());
                drive_teardown(&mut teardown, Phase::Starting, &mut host, &mut resources)
            }
            None => Findings::default(),
        };
        let report = self.report(Cause::StartFailed, None, Some(StartFailure::Other(reason)), findings);
        self.conclude(&report)
    }
}

fn blank(setup: &Setup, findings: Findings) -> Report {
    Report {
        schema: penfold_teardown::report::SCHEMA,
        id: setup.spec.id.short(),
        name: setup.spec.name.clone(),
        labels: setup.spec.labels.clone(),
        command: words(setup),
        level: Level::Subreaper,
        cause: Cause::StartFailed,
        exit: None,
        limits: setup.spec.limits,
        failure: None,
        life: setup.spec.detach.as_ref().and_then(|detach| detach.life.as_ref()).map(Life::number),
        started_at_ms: millis_since_1970(SystemTime::now()),
        duration_ms: whole_millis(setup.began.elapsed()),
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

fn words(setup: &Setup) -> Vec<String> {
    setup.spec.command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

fn millis_since_1970(time: SystemTime) -> u64 {
    whole_millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}
