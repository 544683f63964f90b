//! The resources of a sandbox, created before the leader is started.

mod conclusion;
mod limited;
mod owned;
mod record;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use penfold_cgroup::{Leaf, LimitedPlace, NoPlace, Place};
use penfold_process::{Pid, ProcFs, ProcessId};
use penfold_state::error_chain;
use penfold_state::events::EventKind;
use penfold_state::intent::shortened;
use penfold_state::names::{self, NameError};
use penfold_state::outside::OutsideNote;
use penfold_state::state::Status;
use penfold_state::time::millis;
use penfold_state::{
    Contain, LaunchSource, LeafLabel, LeafName, Life, Nested, Scratch, SparePlan, lock, spared,
};
use penfold_sys::alarm::Alarm;
use penfold_sys::descriptors;
use penfold_teardown::lifecycle::Phase;
use penfold_teardown::{
    Cause, Findings, Level, Resource, Scope, Sparing, StopPolicy, Survivor, Teardown, drive,
};

use self::conclusion::conclude;
use crate::detached_parts::DetachedParts;
use crate::immediate_kill::ImmediateKill;
use crate::ipc;
use crate::leader_cell::LeaderCell;
use crate::nested;
use crate::outcome::{ExitStatus, Outcome, Report, StartFailure};
use crate::recorded_exec::ExecRecord;
use crate::setup::Setup;

/// The resources of a sandbox. The supervisor and its parent both hold them, so either can end the sandbox alone.
#[expect(clippy::struct_excessive_bools, reason = "facts that have nothing to do with each other")]
pub(crate) struct Prepared {
    pub(crate) setup: Setup,
    pub(crate) proc: Option<ProcFs>,
    pub(crate) leaf: Option<Leaf>,
    /// The path of the leaf, also after the teardown has taken `leaf`.
    pub(crate) leaf_path: Option<PathBuf>,
    pub(crate) level: Level,
    /// In the order of acquisition.
    pub(crate) resources: Vec<Box<dyn Resource>>,
    /// The registry of sandboxes started inside of this one; `None` if this sandbox has no record.
    pub(crate) nested: Option<Nested>,
    /// The nested sandboxes that existed when the end began.
    inside: Option<Vec<nested::NestedSandbox>>,
    /// The features that the host does not offer and that would strengthen the guarantee.
    pub(crate) missing: Vec<String>,
    /// The reason why the level is not a stronger one.
    pub(crate) weaker: Option<String>,
    pub(crate) started_at: SystemTime,
    /// The members that the end leaves alone.
    spare: Option<SparePlan>,
    /// The note that this sandbox is outside of the one from which it was started.
    pub(crate) outside: Option<OutsideNote>,
    /// Whether these are the resources of an exec.
    is_exec: bool,
    /// The parts of a detached sandbox.
    pub(crate) detached: Option<Box<DetachedParts>>,
    /// The record of a recorded exec.
    pub(crate) recorded: Option<Box<ExecRecord>>,
    /// A timer that sends SIGCONT to this process, and its expiry. A member may stop both processes that watch each
    /// other.
    pub(crate) alarm: Option<(Alarm, Instant)>,
    /// The leader's pid, written by the supervisor and read after a takeover.
    pub(crate) leader: LeaderCell,
    /// The leader, if this was noted before it ran.
    pub(crate) leader_id: Option<ProcessId>,
    /// The end is in the counters of the state root.
    counted: bool,
    /// The events say what was left.
    leak_told: bool,
    /// The state root remembers survivors.
    remembers: bool,
}

impl Prepared {
    /// Creates the resources of the sandbox: record, scratch directory, leaf.
    ///
    /// # Errors
    /// The outcome of a sandbox that never started. Resources created so far are removed again, or named in the
    /// outcome.
    pub(crate) fn prepare(mut setup: Setup) -> Result<Prepared, Box<Outcome>> {
        let started_at = SystemTime::now().checked_sub(setup.began.elapsed()).unwrap_or(UNIX_EPOCH);
        let mut resources: Vec<Box<dyn Resource>> = Vec::new();
        if let Some(name) = setup.spec.claim.take() {
            resources.push(Box::new(name));
        }
        if let Err(error) = has_room(&setup) {
            return Err(Box::new(refuse(&setup, error.into(), resources)));
        }
        let limited = match limited::find(&mut setup) {
            Ok(limited) => limited,
            Err(error) => return Err(Box::new(refuse(&setup, error.into(), resources))),
        };
        let launch = setup.spec.detach.as_mut().and_then(|detach| detach.launch.take());
        match Parts::make(&setup, limited, launch, &mut resources) {
            Ok(parts) => {
                let level = match (setup.spec.contain, &parts.leaf) {
                    (Contain::Pidns, _) => Level::Pidns,
                    (_, Some(_)) => Level::Cgroup,
                    (_, None) => Level::Subreaper,
                };
                Ok(Prepared {
                    setup,
                    proc: Some(parts.proc),
                    leaf_path: parts.leaf.as_ref().map(|leaf| leaf.path().to_owned()),
                    leaf: parts.leaf,
                    level,
                    resources,
                    nested: parts.nested,
                    inside: None,
                    missing: parts.missing,
                    weaker: parts.weaker,
                    started_at,
                    spare: parts.spare,
                    outside: parts.outside,
                    is_exec: false,
                    detached: parts.detached,
                    recorded: None,
                    alarm: None,
                    leader: parts.leader,
                    leader_id: None,
                    counted: false,
                    leak_told: false,
                    remembers: false,
                })
            }
            Err(refusal) => Err(Box::new(refuse(&setup, refusal, resources))),
        }
    }

    /// Returns the resources of an exec: only a leaf below the sandbox's leaf.
    ///
    /// # Errors
    /// The reason, as a sentence.
    pub(crate) fn for_exec(setup: Setup, leaf: Option<Leaf>, level: Level) -> Result<Prepared, String> {
        // An exec ends as a whole, whatever the rules of the sandbox.
        let spare = setup.spec.allow_outside.then(|| SparePlan {
            rules: Vec::new(),
            home: None,
            allows_outside: true,
        });
        Ok(Prepared {
            setup,
            proc: Some(ProcFs::open().map_err(|error| format!("cannot read /proc: {error}"))?),
            leaf_path: leaf.as_ref().map(|leaf| leaf.path().to_owned()),
            leaf,
            level,
            resources: Vec::new(),
            nested: None,
            inside: None,
            missing: Vec::new(),
            weaker: None,
            started_at: SystemTime::now(),
            spare,
            outside: None,
            is_exec: true,
            detached: None,
            recorded: None,
            alarm: None,
            leader: LeaderCell::create()?,
            leader_id: None,
            counted: false,
            leak_told: false,
            remembers: false,
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
        let Some(detached) = &mut self.detached else { return };
        let own = rustix::process::getpid();
        let mut id = |pid| teardown.proc().stat(pid).ok().flatten().map(|stat| stat.id());
        let supervisors = standby.into_iter().chain([own]).filter_map(&mut id).collect();
        detached.set_processes(supervisors, id(leader));
        detached.write_status(status, self.level, &self.missing);
    }

    /// Adds a supervisor to the note of a sandbox outside. Until then the supervisor is known as a child of the one that is noted.
    pub(crate) fn note_supervisor(&mut self, supervisor: Pid) {
        let Some(note) = &self.outside else { return };
        let Some(proc) = &mut self.proc else { return };
        let stat = proc.stat(supervisor).ok().flatten();
        // Without the note, the supervisor counts as a member of the other sandbox once the standby is dead.
        let _ = stat.map(|stat| note.add(stat.id()));
    }

    /// Publishes the start event.
    pub(crate) fn publish_start(&self) {
        let Some(detached) = &self.detached else { return };
        let leader = self.leader.load().map(|(pid, _)| pid.as_raw_nonzero().get());
        let life = self.setup.spec.detach.as_ref().and_then(|detach| detach.life.as_ref());
        detached.publish_events([EventKind::Start {
            command: shortened(words(&self.setup)),
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
        let lease = self.detached.as_ref().and_then(|detached| detached.lease.end());
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
    pub(crate) fn teardown(&mut self, proc: ProcFs, scope: Scope) -> Teardown {
        let mut teardown = Teardown::new(proc, self.leaf.take(), scope);
        if let Some(plan) = &self.spare {
            let spec = &self.setup.spec;
            let sparing = spared::sparing(plan, &spec.state_root, &spec.id.short());
            teardown.spare(Sparing { is_partial: self.is_exec, ..sparing });
        }
        teardown
    }

    /// Notes the leader before it runs, where that is needed: to tell when it started, although it may have ended before it is
    /// seen to run, and if members may be spared, which the leader never is.
    pub(crate) fn note_leader(&mut self, leader: Pid) {
        let spec = &self.setup.spec;
        if self.is_exec || self.spare.is_none() && spec.status.is_none() {
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
        if let Some(detached) = &self.detached {
            detached.execs.unmark_strays(&mut findings.ended);
        }
        nested::merge(self.inside.as_deref().unwrap_or_default(), &mut findings.ended);
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
        if self.inside.is_none() {
            self.inside = self.nested.as_ref().map(nested::find);
        }
    }

    /// Ends a sandbox whose supervisor could not be created.
    pub(crate) fn give_up(mut self, reason: String) -> Outcome {
        let mut resources = std::mem::take(&mut self.resources);
        let findings = match self.proc.take() {
            Some(proc) => {
                let mut teardown = self.teardown(proc, Scope::Children);
                let mut host = ImmediateKill::new(self.stop_policy());
                drive(&mut teardown, Phase::Starting, &mut host, &mut resources)
            }
            None => Findings::default(),
        };
        let report = self.report(Cause::StartFailed, None, Some(StartFailure::Other(reason)), findings);
        self.conclude(&report)
    }
}

/// The results of [`Prepared::prepare`] besides the resources.
struct Parts {
    spare: Option<SparePlan>,
    outside: Option<OutsideNote>,
    detached: Option<Box<DetachedParts>>,
    proc: ProcFs,
    leaf: Option<Leaf>,
    nested: Option<Nested>,
    missing: Vec<String>,
    weaker: Option<String>,
    leader: LeaderCell,
}

/// Why nothing is started.
struct Refusal {
    reason: String,
    /// The living sandbox that has the name, if that is the reason.
    name_holder: Option<String>,
}

impl Refusal {
    fn of_name(error: &NameError) -> Refusal {
        let name_holder = match error {
            NameError::Taken { holder, .. } => Some(holder.clone()),
            NameError::State(_) | NameError::Io { .. } => None,
        };
        Refusal { reason: error.to_string(), name_holder }
    }
}

impl From<String> for Refusal {
    fn from(reason: String) -> Refusal {
        Refusal { reason, name_holder: None }
    }
}

impl Parts {
    fn make(
        setup: &Setup,
        limited: Option<LimitedPlace>,
        launch: Option<LaunchSource>,
        resources: &mut Vec<Box<dyn Resource>>,
    ) -> Result<Parts, Refusal> {
        // The leaf is created last: it is not in `resources`, so no later step may fail.
        let leader = LeaderCell::create()?;
        let mut missing = Vec::new();
        let (mut proc, no_proc) = open_proc(setup)?;
        if let Some(name) = setup.spec.name.as_ref().filter(|_| resources.is_empty()) {
            match names::take(&setup.spec.state_root, name, &setup.spec.id) {
                Ok(name) => resources.push(Box::new(name)),
                Err(error @ NameError::Taken { .. }) => return Err(Refusal::of_name(&error)),
                Err(error) => missing.push(format!("no name: {}", error_chain(&error))),
            }
        }
        let (place, mut weaker) = match (limited, no_proc) {
            (Some(limited), _) => (Some(limited::enable(limited)?), None),
            (None, Some(why)) => (None, Some(why).filter(|_| setup.spec.contain == Contain::Auto)),
            (None, None) => find_place(setup.spec.contain, setup.scope.as_deref())?,
        };
        owned::claim(setup, resources)?;
        let leaf_name = LeafName::of(&setup.spec.id.short());
        let path = place.as_ref().map(|place| place.path().join(&leaf_name));
        let intent = record::intent(setup, path, &mut proc);
        let outside = record::leave_outside(setup, &intent, &mut proc, resources)?;
        let (nested, detached) = match &setup.spec.detach {
            None => (record::write(setup, &intent, resources, &mut missing), None),
            Some(detach) => {
                let (nested, detached) = record::write_detached(setup, &intent, (detach, launch), resources)?;
                (Some(nested), Some(Box::new(detached)))
            }
        };
        penfold_sys::crash_point!("recorded");
        if let (Some(path), Some(asked)) = (&setup.scratch, &setup.spec.scratch) {
            let scratch = Scratch::create(path.clone()).map_err(|error| {
                format!("cannot make the scratch directory `{}`: {error}", path.display())
            })?;
            let furnished = scratch.furnish(asked);
            resources.push(Box::new(scratch));
            furnished.map_err(|error| {
                format!("cannot furnish the scratch directory `{}`: {error}", path.display())
            })?;
        }
        owned::make(setup, nested.is_some(), resources)?;
        ipc::add(setup, &proc, resources)?;
        let leaf = match place.map(|place| Leaf::create(&place, leaf_name.as_str())) {
            None => None,
            Some(Ok(leaf)) => {
                let leaf = limited::hold(leaf, &setup.spec.limits)?;
                // The flock protects the leaf from cleanup while a penfold process of this sandbox lives: a leaf
                // without a record need not be an orphan.
                let _ = lock::hold_new(leaf.dir());
                if detached.is_some() {
                    LeafLabel::write(leaf.dir(), &intent);
                }
                Some(leaf)
            }
            Some(Err(error)) if setup.spec.contain == Contain::Cgroup || !setup.spec.limits.is_empty() => {
                return Err(error_chain(&error).into());
            }
            Some(Err(error)) => {
                weaker = Some(error_chain(&error));
                None
            }
        };
        penfold_sys::crash_point!("leaf-made");
        Ok(Parts { spare: intent.spare, outside, detached, proc, leaf, nested, missing, weaker, leader })
    }
}

/// The descriptors that each process of a foreground sandbox opens from here on. A teardown without free descriptors
/// could not inspect the members. The tests try every descriptor limit.
const FOREGROUND_DESCRIPTORS: usize = 12;
/// The same number for a detached sandbox, which also has socket, log, pipes and lease.
const DETACHED_DESCRIPTORS: usize = 18;

/// Checks, before any resource is created, that the descriptor limit is high enough.
fn has_room(setup: &Setup) -> Result<(), String> {
    let spec = &setup.spec;
    let count = if spec.detach.is_some() { DETACHED_DESCRIPTORS } else { FOREGROUND_DESCRIPTORS };
    let count = count + 2 * usize::from(spec.name.is_some()) + usize::from(setup.scratch.is_some());
    let pipe = spec.detach.as_ref().and_then(|detach| detach.ready_pipe.as_ref());
    let count = count + 2 * usize::from(pipe.is_some());
    let count = count + owned::descriptors(&spec.resources);
    let count = count + ipc::DESCRIPTORS * usize::from(setup.program.ipc().is_some());
    descriptors::has_room(setup.channel.as_fd(), count)
        .map_err(|error| format!("cannot open the {count} descriptors that its supervision needs: {error}"))
}

/// Opens `/proc`, or returns the reason why it cannot be read.
///
/// Without `/proc`, the level subreaper still works in the foreground: a process needs no `/proc` to wait for its own
/// children. Stronger levels and detached sandboxes are refused.
fn open_proc(setup: &Setup) -> Result<(ProcFs, Option<String>), String> {
    let error = match ProcFs::open() {
        Ok(proc) => return Ok((proc, None)),
        Err(error) => format!("cannot read /proc: {error}"),
    };
    let in_reach = matches!(setup.spec.contain, Contain::Auto | Contain::Subreaper);
    if in_reach && setup.spec.detach.is_none() { Ok((ProcFs::blind(), Some(error))) } else { Err(error) }
}

/// Finds the place for a leaf if one is wanted, or the reason why there is none. In a scope the leaf is beside the cgroup of this
/// process.
fn find_place(contain: Contain, scope: Option<&Path>) -> Result<(Option<Place>, Option<String>), String> {
    if contain == Contain::Subreaper {
        return Ok((None, None));
    }
    match scope.map_or_else(Place::find_here, Place::at) {
        Ok(place) => Ok((Some(place), None)),
        Err(error) if contain == Contain::Cgroup => {
            Err(format!("no cgroup can be made here: {}", error_chain(&error)))
        }
        Err(NoPlace::NotMounted) => Ok((None, Some("no cgroup2 file system is mounted".to_owned()))),
        Err(error) => Ok((None, Some(error_chain(&error)))),
    }
}

/// Releases the resources of a sandbox that will not start, and builds its outcome.
fn refuse(setup: &Setup, refusal: Refusal, mut resources: Vec<Box<dyn Resource>>) -> Outcome {
    let Refusal { reason, name_holder } = refusal;
    let mut findings = Findings::default();
    penfold_teardown::release(&mut resources, false, |resource, _, reason| {
        if let Some(reason) = reason {
            findings.survivors.push(Survivor::Resource { what: resource.describe(), reason });
        }
    });
    findings.verified = findings.survivors.is_empty();
    let report = Report { failure: Some(StartFailure::Other(reason)), ..blank(setup, findings) };
    Outcome { name_holder, ..conclude(setup, &report) }
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
        duration_ms: millis(setup.began.elapsed()),
        missing: Vec::new(),
        weaker: None,
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
    millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}
