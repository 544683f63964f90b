//! What a sandbox owns, made ready before anything is started.

mod record;

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use penfold_cgroup::{Leaf, NoPlace, Place};
use penfold_process::{Pid, ProcFs};
use penfold_state::error_chain;
use penfold_state::events::EventKind;
use penfold_state::intent::shortened;
use penfold_state::names::{self, NameError};
use penfold_state::state::Status;
use penfold_state::time::millis;
use penfold_state::{Contain, LeafLabel, LeafName, Nested, Scratch, lock};
use penfold_sys::alarm::Alarm;
use penfold_sys::descriptors;
use penfold_teardown::lifecycle::Phase;
use penfold_teardown::{Cause, Findings, Level, Resource, Scope, StopPolicy, Survivor, Teardown, drive};

use crate::detached_parts::DetachedParts;
use crate::immediate_kill::ImmediateKill;
use crate::leader_cell::LeaderCell;
use crate::nested;
use crate::outcome::{ExitStatus, Outcome, Report, StartFailure};
use crate::report_file;
use crate::setup::Setup;

/// What two processes hold, so that either can end the sandbox alone: the supervisor and who forked it.
pub(crate) struct Prepared {
    pub(crate) setup: Setup,
    pub(crate) proc: Option<ProcFs>,
    pub(crate) leaf: Option<Leaf>,
    /// Where the leaf is, after the teardown has taken it.
    pub(crate) leaf_path: Option<PathBuf>,
    pub(crate) level: Level,
    /// In the order of acquisition.
    pub(crate) resources: Vec<Box<dyn Resource>>,
    /// Sandboxes that are started inside of this one; none without a record of its own.
    pub(crate) nested: Option<Nested>,
    /// Those that were there when its end began.
    inside: Option<Vec<nested::Line>>,
    /// What the host did not give and the guarantee would like to have.
    pub(crate) missing: Vec<String>,
    /// Why the level is not a stronger one.
    pub(crate) weaker: Option<String>,
    pub(crate) started_at: SystemTime,
    /// What only a detached sandbox has.
    pub(crate) detached: Option<Box<DetachedParts>>,
    /// Lets this process go on at a deadline, and when that is: a member may stop both that watch each other.
    pub(crate) alarm: Option<(Alarm, Instant)>,
    /// Written by the supervisor, read by who takes its place.
    pub(crate) leader: LeaderCell,
}

impl Prepared {
    /// Makes what the sandbox is to own: record, scratch directory, leaf.
    ///
    /// # Errors
    /// The outcome of a sandbox that was never started; what had been made is gone again, or named.
    pub(crate) fn prepare(mut setup: Setup) -> Result<Prepared, Box<Outcome>> {
        let started_at = SystemTime::now().checked_sub(setup.began.elapsed()).unwrap_or(UNIX_EPOCH);
        let mut resources: Vec<Box<dyn Resource>> = Vec::new();
        if let Some(name) = setup.spec.claim.take() {
            resources.push(Box::new(name));
        }
        if let Err(error) = has_room(&setup) {
            return Err(Box::new(refuse(&setup, error, resources)));
        }
        match Parts::make(&setup, &mut resources) {
            Ok(made) => {
                let level = match (setup.spec.contain, &made.leaf) {
                    (Contain::Pidns, _) => Level::Pidns,
                    (_, Some(_)) => Level::Cgroup,
                    (_, None) => Level::Subreaper,
                };
                Ok(Prepared {
                    setup,
                    proc: Some(made.proc),
                    leaf_path: made.leaf.as_ref().map(|leaf| leaf.path().to_owned()),
                    leaf: made.leaf,
                    level,
                    resources,
                    nested: made.nested,
                    inside: None,
                    missing: made.missing,
                    weaker: made.weaker,
                    started_at,
                    detached: made.detached,
                    alarm: None,
                    leader: made.leader,
                })
            }
            Err(reason) => Err(Box::new(refuse(&setup, reason, resources))),
        }
    }

    /// What an exec owns: the leaf below that of its sandbox, nothing else.
    ///
    /// # Errors
    /// What stands in the way, in a sentence.
    pub(crate) fn for_exec(setup: Setup, leaf: Option<Leaf>, level: Level) -> Result<Prepared, String> {
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
            detached: None,
            alarm: None,
            leader: LeaderCell::create()?,
        })
    }

    /// Writes down for others who leads and who looks after the sandbox.
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
        detached.looked_after_by(supervisors, id(leader));
        detached.say(status, self.level, &self.missing);
    }

    /// Tells those who follow the events that the command runs.
    pub(crate) fn tell_start(&self) {
        let Some(detached) = &self.detached else { return };
        let leader = self.leader.noted().map(|(pid, _)| pid.as_raw_nonzero().get());
        detached.happened([EventKind::Start {
            command: shortened(words(&self.setup)),
            level: self.level,
            leader,
        }]);
    }

    /// The session that members share with the leader: its own if it has one.
    pub(crate) fn session_of(&self, leader: Pid) -> i32 {
        if self.setup.apart { leader.as_raw_nonzero().get() } else { self.setup.session }
    }

    /// When its time is over, be it the limit or the lease.
    pub(crate) fn first_deadline(&self) -> Option<Instant> {
        let limit = self.setup.spec.timeout.and_then(|limit| self.setup.began.checked_add(limit));
        let lease = self.detached.as_ref().and_then(|detached| detached.lease.end());
        [limit, lease].into_iter().flatten().min()
    }

    /// Sets the alarm. Without one it is as before: a limit of the specification.
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

    /// How the sandbox is ended unless somebody asks for it otherwise.
    pub(crate) fn stop_policy(&self) -> StopPolicy {
        let spec = &self.setup.spec;
        StopPolicy { signal: spec.signal, spared_group: None, grace: spec.grace, patience: spec.patience }
    }

    /// Puts the report together.
    pub(crate) fn report(
        &self,
        cause: Cause,
        exit: Option<ExitStatus>,
        failure: Option<StartFailure>,
        mut findings: Findings,
    ) -> Report {
        if let Some(detached) = &self.detached {
            detached.execs.vouch(&mut findings.ended);
        }
        nested::name(self.inside.as_deref().unwrap_or_default(), &mut findings.ended);
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

    /// The leaf of the sandbox, if those of its execs are made below it.
    pub(crate) fn leaf_of_execs(&self) -> Option<PathBuf> {
        self.leaf_path.clone().filter(|_| self.level != Level::Subreaper)
    }

    /// Finds the sandboxes inside of this one, as its end begins.
    pub(crate) fn find_nested(&mut self) {
        if self.inside.is_none() {
            self.inside = self.nested.as_ref().map(nested::find);
        }
    }

    /// Ends a sandbox whose supervisor could not be made.
    pub(crate) fn give_up(mut self, reason: String) -> Outcome {
        let mut resources = std::mem::take(&mut self.resources);
        let findings = match self.proc.take() {
            Some(proc) => {
                let mut teardown = Teardown::new(proc, self.leaf.take(), Scope::Children);
                let mut host = ImmediateKill::new(self.stop_policy());
                drive(&mut teardown, Phase::Starting, &mut host, &mut resources)
            }
            None => Findings::default(),
        };
        let report = self.report(Cause::StartFailed, None, Some(StartFailure::Other(reason)), findings);
        self.conclude(&report)
    }

    /// Writes the report where it is wanted and cuts it short for the launcher.
    pub(crate) fn conclude(&mut self, report: &Report) -> Outcome {
        if let Some(detached) = &mut self.detached {
            detached.conclude(report);
        }
        conclude(&self.setup, report)
    }
}

/// What [`Prepared::prepare`] makes besides the resources.
struct Parts {
    detached: Option<Box<DetachedParts>>,
    proc: ProcFs,
    leaf: Option<Leaf>,
    nested: Option<Nested>,
    missing: Vec<String>,
    weaker: Option<String>,
    leader: LeaderCell,
}

impl Parts {
    fn make(setup: &Setup, resources: &mut Vec<Box<dyn Resource>>) -> Result<Parts, String> {
        // The leaf is the last that is made, for it is no resource: whatever fails, fails before.
        let leader = LeaderCell::create()?;
        let mut missing = Vec::new();
        let (mut proc, unseen) = proc(setup)?;
        if let Some(name) = setup.spec.name.as_ref().filter(|_| resources.is_empty()) {
            match names::take(&setup.spec.state_root, name, &setup.spec.id) {
                Ok(name) => resources.push(Box::new(name)),
                Err(error @ NameError::Taken { .. }) => return Err(error.to_string()),
                Err(error) => missing.push(format!("no name: {}", error_chain(&error))),
            }
        }
        let (place, mut weaker) = match unseen {
            Some(why) => (None, Some(why).filter(|_| setup.spec.contain == Contain::Auto)),
            None => place(setup.spec.contain)?,
        };
        let leaf_name = LeafName::of(&setup.spec.id.short());
        let path = place.as_ref().map(|place| place.path().join(&leaf_name));
        let intent = record::intent(setup, path, &mut proc);
        let (nested, detached) = match &setup.spec.detach {
            None => (record::write(setup, &intent, resources, &mut missing), None),
            Some(detach) => {
                let (nested, detached) = record::write_detached(setup, &intent, detach, resources)?;
                (Some(nested), Some(Box::new(detached)))
            }
        };
        penfold_sys::crash_point!("recorded");
        if let Some(path) = &setup.scratch {
            let scratch = Scratch::create(path.clone()).map_err(|error| {
                format!("cannot make the scratch directory `{}`: {error}", path.display())
            })?;
            resources.push(Box::new(scratch));
        }
        let leaf = match place.map(|place| Leaf::create(&place, leaf_name.as_str())) {
            None => None,
            Some(Ok(leaf)) => {
                // Prepared as long as one of ours lives: a leaf without a record is not always one that was left behind.
                let _ = lock::hold_new(leaf.dir());
                if detached.is_some() {
                    LeafLabel::write(leaf.dir(), &intent);
                }
                Some(leaf)
            }
            Some(Err(error)) if setup.spec.contain == Contain::Cgroup => return Err(error_chain(&error)),
            Some(Err(error)) => {
                weaker = Some(error_chain(&error));
                None
            }
        };
        penfold_sys::crash_point!("leaf-made");
        Ok(Parts { detached, proc, leaf, nested, missing, weaker, leader })
    }
}

/// What a sandbox opens from here on, in each of its processes: a teardown that ran out of descriptors would leave what it
/// cannot look at. The tests walk all limits.
const IN_FRONT: usize = 12;
/// The same of a detached one: socket, log, pipes, lease.
const DETACHED: usize = 18;

/// Whether there is room for all that the sandbox will open, before anything is made.
fn has_room(setup: &Setup) -> Result<(), String> {
    let spec = &setup.spec;
    let count = if spec.detach.is_some() { DETACHED } else { IN_FRONT };
    let count = count + 2 * usize::from(spec.name.is_some()) + usize::from(setup.scratch.is_some());
    descriptors::has_room(setup.channel.as_fd(), count).map_err(|error| {
        format!("cannot open the {count} descriptors that it takes to look after it: {error}")
    })
}

/// Opens `/proc`. Where there is none to be believed, and why, descent alone tells who belongs to a sandbox: the kernel gives
/// a process its own children. What needs more is refused.
fn proc(setup: &Setup) -> Result<(ProcFs, Option<String>), String> {
    let error = match ProcFs::open() {
        Ok(proc) => return Ok((proc, None)),
        Err(error) => format!("cannot read /proc: {error}"),
    };
    let in_reach = matches!(setup.spec.contain, Contain::Auto | Contain::Subreaper);
    if in_reach && setup.spec.detach.is_none() { Ok((ProcFs::blind(), Some(error))) } else { Err(error) }
}

/// Finds where a leaf may be made, if one is wanted, or why not.
fn place(contain: Contain) -> Result<(Option<Place>, Option<String>), String> {
    if contain == Contain::Subreaper {
        return Ok((None, None));
    }
    match Place::find_here() {
        Ok(place) => Ok((Some(place), None)),
        Err(error) if contain == Contain::Cgroup => {
            Err(format!("no cgroup can be made here: {}", error_chain(&error)))
        }
        Err(NoPlace::NotMounted) => Ok((None, Some("no cgroup2 file system is mounted".to_owned()))),
        Err(error) => Ok((None, Some(error_chain(&error)))),
    }
}

/// Takes back what was made for a sandbox that will not be.
fn refuse(setup: &Setup, reason: String, mut resources: Vec<Box<dyn Resource>>) -> Outcome {
    let mut findings = Findings::default();
    penfold_teardown::release(&mut resources, false, |resource, _, reason| {
        if let Some(reason) = reason {
            findings.survivors.push(Survivor::Resource { what: resource.describe(), reason });
        }
    });
    findings.verified = findings.survivors.is_empty();
    let report = Report { failure: Some(StartFailure::Other(reason)), ..blank(setup, findings) };
    conclude(setup, &report)
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
        failure: None,
        started_at_ms: millis_since_1970(SystemTime::now()),
        duration_ms: millis(setup.began.elapsed()),
        missing: Vec::new(),
        weaker: None,
        findings,
    }
}

fn words(setup: &Setup) -> Vec<String> {
    setup.spec.command.iter().map(|status| status.to_string_lossy().into_owned()).collect()
}

fn millis_since_1970(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(0)
}

/// Writes the report where it is wanted and cuts it short for the launcher.
fn conclude(setup: &Setup, report: &Report) -> Outcome {
    let unwritten = setup
        .spec
        .report
        .as_ref()
        .and_then(|file| report_file::write(file, setup.spec.report_is_shared, report).err());
    Outcome::of(report, unwritten.map(|error| error.to_string()))
}
