//! What a sandbox owns, made ready before anything is started.

use std::io::{Seek, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use penfold_cgroup::{Leaf, NoPlace, Place};
use penfold_process::{Pid, ProcFs};
use penfold_sandbox::record::SCHEMA;
use penfold_sandbox::{Contain, Intent, Nested, Registry, Scratch};
use penfold_teardown::lifecycle::Phase;
use penfold_teardown::{Cause, Findings, Ladder, Level, Resource, Scope, Survivor, Teardown, drive};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::FlockOperation;

use crate::environment;
use crate::outcome::{Outcome, Report, StartFailure, Status};
use crate::start::Setup;
use crate::takeover::Takeover;

/// What two processes hold, so that either can end the sandbox alone: the supervisor and who forked it.
pub(crate) struct Held {
    pub(crate) setup: Setup,
    pub(crate) proc: Option<ProcFs>,
    pub(crate) leaf: Option<Leaf>,
    pub(crate) level: Level,
    /// In the order of acquisition.
    pub(crate) resources: Vec<Box<dyn Resource>>,
    /// Where other records are.
    pub(crate) registry: Option<Registry>,
    /// What the host did not give and the guarantee would like to have.
    pub(crate) missing: Vec<String>,
    /// Why the level is not a stronger one.
    pub(crate) weaker: Option<String>,
    pub(crate) started_at: SystemTime,
    /// The supervisor writes the leader's pid here.
    leader: OwnedFd,
}

impl Held {
    /// Makes what the sandbox is to own: record, scratch directory, leaf.
    ///
    /// # Errors
    /// The outcome of a sandbox that was never started; what had been made is gone again, or named.
    pub(crate) fn prepare(setup: Setup) -> Result<Held, Box<Outcome>> {
        let mut resources = Vec::new();
        match Made::make(&setup, &mut resources) {
            Ok(made) => {
                let level = match (setup.spec.contain, &made.leaf) {
                    (Contain::Pidns, _) => Level::Pidns,
                    (_, Some(_)) => Level::Cgroup,
                    (_, None) => Level::Subreaper,
                };
                Ok(Held {
                    setup,
                    proc: Some(made.proc),
                    leaf: made.leaf,
                    level,
                    resources,
                    registry: made.registry,
                    missing: made.missing,
                    weaker: made.weaker,
                    started_at: SystemTime::now(),
                    leader: made.leader,
                })
            }
            Err(reason) => Err(Box::new(refuse(&setup, reason, resources))),
        }
    }

    /// Writes down who leads, for the other process; the last one written counts.
    pub(crate) fn note_leader(&self, pid: Pid) {
        let mut before = [0_u8; 8];
        let _ = rustix::io::read(&self.leader, &mut before);
        let number = u64::try_from(pid.as_raw_nonzero().get()).unwrap_or(0);
        let _ = rustix::io::write(&self.leader, &number.to_ne_bytes());
    }

    /// The leader, if the supervisor came far enough to write it down.
    pub(crate) fn noted_leader(&self) -> Option<Pid> {
        let mut number = [0_u8; 8];
        rustix::io::read(&self.leader, &mut number).ok()?;
        Pid::from_raw(i32::try_from(u64::from_ne_bytes(number)).ok()?)
    }

    /// How the sandbox is ended unless somebody asks for it otherwise.
    pub(crate) fn ladder(&self) -> Ladder {
        let spec = &self.setup.spec;
        Ladder { signal: spec.signal, spared_group: None, grace: spec.grace, patience: spec.patience }
    }

    /// Puts the report together.
    pub(crate) fn report(
        &self,
        cause: Cause,
        exit: Option<Status>,
        failure: Option<StartFailure>,
        findings: Findings,
    ) -> Report {
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

    /// Ends a sandbox whose supervisor could not be made.
    pub(crate) fn give_up(mut self, reason: String) -> Outcome {
        let mut resources = std::mem::take(&mut self.resources);
        let findings = match self.proc.take() {
            Some(proc) => {
                let mut teardown = Teardown::new(proc, self.leaf.take(), Scope::Children);
                let mut host = Takeover::new(self.ladder(), false);
                drive(&mut teardown, Phase::Starting, &mut host, &mut resources)
            }
            None => Findings::default(),
        };
        let report = self.report(Cause::StartFailed, None, Some(StartFailure::Other(reason)), findings);
        conclude(&self.setup, &report)
    }
}

/// What [`Held::prepare`] makes besides the resources.
struct Made {
    proc: ProcFs,
    leaf: Option<Leaf>,
    registry: Option<Registry>,
    missing: Vec<String>,
    weaker: Option<String>,
    leader: OwnedFd,
}

impl Made {
    fn make(setup: &Setup, resources: &mut Vec<Box<dyn Resource>>) -> Result<Made, String> {
        let mut missing = Vec::new();
        let proc = ProcFs::open().map_err(|error| format!("cannot read /proc: {error}"))?;
        let (place, mut weaker) = place(setup.spec.contain)?;
        let name = format!("penfold-{}", setup.spec.id);
        let path = place.as_ref().map(|place| place.path().join(&name));
        let registry = record(setup, path, resources, &mut missing);
        penfold_sys::crash_point!("recorded");
        if let Some(path) = &setup.scratch {
            let scratch = Scratch::create(path.clone()).map_err(|error| {
                format!("cannot make the scratch directory `{}`: {error}", path.display())
            })?;
            resources.push(Box::new(scratch));
        }
        let leaf = match place.map(|place| Leaf::create(&place, &name)) {
            None => None,
            Some(Ok(leaf)) => {
                // Held as long as one of ours lives: a leaf without a record is not always one that was left behind.
                let _ = rustix::fs::flock(leaf.dir(), FlockOperation::NonBlockingLockExclusive);
                Some(leaf)
            }
            Some(Err(error)) if setup.spec.contain == Contain::Cgroup => return Err(chain(&error)),
            Some(Err(error)) => {
                weaker = Some(chain(&error));
                None
            }
        };
        penfold_sys::crash_point!("leaf-made");
        let leader = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| format!("cannot make an eventfd: {error}"))?;
        Ok(Made { proc, leaf, registry, missing, weaker, leader })
    }
}

/// Finds where a leaf may be made, if one is wanted, or why not.
fn place(contain: Contain) -> Result<(Option<Place>, Option<String>), String> {
    if contain == Contain::Subreaper {
        return Ok((None, None));
    }
    match Place::find_here() {
        Ok(place) => Ok((Some(place), None)),
        Err(error) if contain == Contain::Cgroup => {
            Err(format!("no cgroup can be made here: {}", chain(&error)))
        }
        Err(NoPlace::NotMounted) => Ok((None, Some("no cgroup2 file system is mounted".to_owned()))),
        Err(error) => Ok((None, Some(chain(&error)))),
    }
}

/// Writes the record. A host without a place for it loses what only the record gives, not the sandbox.
fn record(
    setup: &Setup,
    leaf: Option<PathBuf>,
    resources: &mut Vec<Box<dyn Resource>>,
    missing: &mut Vec<String>,
) -> Option<Registry> {
    let spec = &setup.spec;
    let intent = Intent {
        schema: SCHEMA,
        id: spec.id,
        name: spec.name.clone(),
        labels: spec.labels.clone(),
        command: shortened(words(setup)),
        boot: penfold_process::boot_id().unwrap_or_default(),
        within: environment::within(&spec.environment),
        leaf,
        scratch: setup.scratch.clone(),
        made_at_ms: penfold_sandbox::state::now_ms(),
        detached: None,
    };
    let reserved = Registry::open(&spec.state_root)
        .and_then(|registry| registry.reserve(&intent).map(|record| (registry, record)));
    match reserved {
        Ok((registry, record)) => {
            resources.push(Box::new(record));
            // Released before the record: sandboxes in this one go before it.
            resources.push(Box::new(Nested::new(&spec.state_root, spec.id.short())));
            Some(registry)
        }
        Err(error) => {
            missing.push(format!("no record: {}", chain(&error)));
            None
        }
    }
}

/// Takes back what was made for a sandbox that will not be.
fn refuse(setup: &Setup, reason: String, mut resources: Vec<Box<dyn Resource>>) -> Outcome {
    let mut findings = Findings::default();
    for resource in resources.iter_mut().rev() {
        if let Err(error) = resource.release(false) {
            let survivor = Survivor::Resource { what: resource.describe(), reason: error.to_string() };
            findings.survivors.push(survivor);
        }
    }
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
        duration_ms: u64::try_from(setup.began.elapsed().as_millis()).unwrap_or(u64::MAX),
        missing: Vec::new(),
        weaker: None,
        findings,
    }
}

fn words(setup: &Setup) -> Vec<String> {
    setup.spec.command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// What a record keeps of a command line: enough to know it by, and no more than is read again.
fn shortened(mut words: Vec<String>) -> Vec<String> {
    let mut left = RECORDED;
    words.retain_mut(|word| {
        let end = (0..=left.min(word.len())).rev().find(|&index| word.is_char_boundary(index)).unwrap_or(0);
        let kept = left > 0;
        word.truncate(end);
        left = left.saturating_sub(end + 1);
        kept
    });
    words
}

/// How many bytes of a command line a record keeps.
const RECORDED: usize = 4096;

fn millis_since_1970(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(0)
}

/// An error with its causes, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

/// Writes the report where it is wanted and cuts it short for the front.
pub(crate) fn conclude(setup: &Setup, report: &Report) -> Outcome {
    let unwritten = setup.spec.report.as_ref().and_then(|file| write_report(file, report).err());
    Outcome::of(report, unwritten.map(|error| error.to_string()))
}

/// How long a reader of the report may keep us waiting.
const READER: Duration = Duration::from_secs(2);

/// Replaces the content of the report file. A pipe or terminal is written to as it is, as far as somebody reads it.
fn write_report(mut file: &std::fs::File, report: &Report) -> std::io::Result<()> {
    let mut text = serde_json::to_vec_pretty(report)?;
    text.push(b'\n');
    if file.metadata()?.is_file() {
        file.set_len(0)?;
        file.rewind()?;
        return file.write_all(&text);
    }
    let begun = Instant::now();
    let mut rest = text.as_slice();
    while !rest.is_empty() {
        let left = Timespec::try_from(READER.saturating_sub(begun.elapsed())).ok();
        let mut fds = [PollFd::new(file, PollFlags::OUT)];
        if rustix::io::retry_on_intr(|| poll(&mut fds, left.as_ref()))? == 0 {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        // A pipe that is ready takes this much without waiting: pipe(7), PIPE_BUF.
        let written = file.write(rest.get(..rest.len().min(PIPE_BUF)).unwrap_or_default())?;
        rest = rest.get(written..).unwrap_or_default();
    }
    Ok(())
}

const PIPE_BUF: usize = 4096;
