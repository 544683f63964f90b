//! Ends the remains of a sandbox without a supervisor.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penfold_cgroup::{Leaf, LeafPlace};
use penfold_process::ProcFs;
use penfold_resource::{OwnedResource, ReleaseDeadline};
use penfold_sys::child::Exit;
use penfold_teardown::lifecycle::{LifecycleEvent, Phase};
use penfold_teardown::{
    Cause, Findings, Level, Marker, MemberScope, Resource, SparePolicy, StopPolicy, Survivor, Teardown,
    TeardownHost, drive_teardown,
};
use rustix::event::{PollFd, Timespec};

use crate::claims::{self, OrphanResource};
use crate::counters::{Counts, StartMode};
use crate::events::{EventKind, Journal};
use crate::evidence::fingerprints::{self, Fingerprints};
use crate::evidence::{EvidenceSubject, UNWRITTEN_SURVIVORS, elsewhere};
use crate::execs;
use crate::files::Files;
use crate::history;
use crate::intent::Intent;
use crate::json::SCHEMA;
use crate::leaf_label::LeafLabel;
use crate::leaf_name::LeafName;
use crate::life::Life;
use crate::marked;
use crate::names::forget_name;
use crate::outcome::Report;
use crate::record::{Record, Registry};
use crate::requester::Requester;
use crate::scope_dir::ScopeDir;
use crate::scratch::Scratch;
use crate::spared;
use crate::state::CommandExit;
use crate::survivor_memory::{forget_survivors, remember_survivors};
use crate::survivors;
use crate::time;

/// The most records that [`find_orphans`] reads, so that a host full of sandboxes does not slow down each new one.
const SWEPT: usize = 64;

/// Ends the remains of a sandbox by its record.
///
/// The record is removed. Only a detached sandbox keeps its record, with the status lost, and its log. A record of a
/// newer format stays unchanged.
///
/// Without a supervisor, members are found by the leaf and by a search over the host for the marker. A process that has
/// only the marker is ended only if a user has `named` the sandbox; otherwise the process is reported as a survivor. `by` is the
/// command that requested this, for the report.
///
/// # Errors
/// When /proc cannot be read; the record stays.
pub fn recover_sandbox(
    record: Record,
    named: bool,
    patience: Duration,
    by: Option<Requester>,
) -> io::Result<Findings> {
    let files = record.files().clone();
    let root = files.path().ancestors().nth(2).map(Path::to_owned);
    let was_counted = files.is_counted();
    let EndedRemains { findings, mode, report, journal } = end_remains(record, named, patience, by)?;
    if let (Some(root), Some(mode)) = (root, mode) {
        // What survives is tried again, and its end counts once.
        let counts = if was_counted {
            Counts::of_mended("record", findings.verified)
        } else {
            let ended = Counts::of_end(mode, Cause::Lost, &findings).unwrap_or_default();
            ended.and(&Counts::of_leak("record", findings.verified))
        };
        files.note_counted();
        let _ = counts.add_to(&root);
        if let (StartMode::Foreground, Some(report)) = (mode, report) {
            let _ = history::keep_again(&root, &report);
            if let (false, Some(journal)) = (was_counted, journal) {
                // All that lived was left: no process of penfold watched over it.
                journal.publish(EventKind::leak(&report.findings, report.findings.ended.iter()));
            }
        }
    }
    Ok(findings)
}

/// The end of a sandbox without a supervisor.
pub(crate) struct EndedRemains {
    findings: Findings,
    /// How the sandbox was started; `None` if the record was never used.
    mode: Option<StartMode>,
    /// The report, if the intent is known.
    report: Option<Report>,
    /// The journal, if the intent is known.
    journal: Option<Journal>,
}

/// As [`recover_sandbox`], for a nested sandbox that was ended with the enclosing one and is no leak.
pub(crate) fn end_remains(
    record: Record,
    named: bool,
    patience: Duration,
    by: Option<Requester>,
) -> io::Result<EndedRemains> {
    penfold_sys::crash_point!("recovering");
    let id = record.name().to_owned();
    let (intent, newer) = match record.intent() {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => (None, true),
        intent => (intent.ok().filter(|intent| is_about(intent, &id)), false),
    };
    let leaf = leaf_of(intent.as_ref(), &id)?;
    let intent = intent.or_else(|| leaf.as_ref().and_then(|leaf| labelled(leaf, &id)).filter(|_| !newer));
    let detached = intent.as_ref().and_then(|intent| intent.detached.as_ref());
    // Only the newer penfold that wrote the record knows what else must be removed.
    let kept = newer || detached.is_some_and(|detached| !detached.remove);
    let files = record.files().clone();
    let had_ended = files.has_ended();
    let root = files.path().ancestors().nth(2).map(Path::to_owned);
    let had_survivors = has_survivors(root.as_deref(), &id);
    let marker = marked::build_marker(&id, intent.as_ref(), Some(&files), named, root.as_deref());
    let sparing = spared::spare_policy_of_intent(intent.as_ref(), root.as_deref());
    let is_blind = has_unknown_survivors(&files, intent.as_ref());
    let mut resources: Vec<Box<dyn Resource>> = Vec::new();
    if !kept && !is_blind {
        resources.push(Box::new(record));
    }
    let scratch = match &intent {
        Some(intent) => intent.scratch.clone(),
        None if newer => None,
        None => unrecorded_scratch(&id)?,
    };
    if let Some(scratch) = existing(scratch)? {
        resources.push(Box::new(scratch));
    }
    resources.extend(scope(intent.as_ref(), &id));
    resources.extend(intent.iter().flat_map(|intent| owned_resources(intent, root.as_deref(), patience)));
    let level = if leaf.is_some() { Level::Cgroup } else { Level::Subreaper };
    let members = MemberTraces { marker: &marker, root: root.as_deref(), leaf, sparing };
    let mut findings = end(members, patience, resources)?;
    if is_blind {
        findings.verified = false;
        findings.survivors.push(Survivor::Unknown { reason: UNWRITTEN_SURVIVORS.to_owned() });
    }
    if let Some(root) = root.as_deref().filter(|_| findings.verified) {
        forget_survivors(root, &id);
    }
    let mode = mode_of(intent.as_ref(), &findings);
    let name = intent.as_ref().and_then(Intent::held_name);
    if let (Some(root), Some(name), true) = (&root, name, findings.verified) {
        // If this fails, a file without a holder is left, which `gc` removes.
        let _ = forget_name(root, &name, files.name());
    }
    // Its supervisor has ended it, and has only exited late.
    let was_gone = had_ended && findings.verified && findings.ended.is_empty();
    // Its survivors were named before, and live on.
    let is_retry = had_survivors && !findings.verified;
    if let Some(intent) = intent.as_ref().filter(|intent| intent.detached.is_some() && !was_gone && !is_retry)
    {
        publish_lost(&files, intent, &findings, by.clone());
    }
    let report = intent.as_ref().map(|intent| Report { by, ..lost(intent, level, findings.clone()) });
    if let Some(report) = report.as_ref().filter(|_| kept && findings.verified && !was_gone) {
        execs::conclude_all(&files, Cause::Lost, level);
        write_end(&files, report);
    }
    let journal = intent.as_ref().map(|intent| Journal::of(&files, intent));
    Ok(EndedRemains { findings, mode, report, journal })
}

/// Opens the leaf of a sandbox.
fn leaf_of(intent: Option<&Intent>, id: &str) -> io::Result<Option<Leaf>> {
    match intent {
        // An unreadable intent may have a leaf: unknown means alive.
        None => unrecorded_leaf(id),
        // Whatever the boot of the record: a leaf of that name is this sandbox's.
        Some(Intent { leaf: Some(path), .. }) => Leaf::open(path).map_err(io::Error::other),
        Some(Intent { leaf: None, .. }) => Ok(None),
    }
}

/// Tells whether members that could not be ended before are known, and live.
fn has_survivors(root: Option<&Path>, id: &str) -> bool {
    root.is_some_and(|root| survivors::living_survivors(root, id).is_ok_and(|living| !living.is_empty()))
}

/// Tells whether there may be survivors of this boot that nobody could write down.
fn has_unknown_survivors(files: &Files, intent: Option<&Intent>) -> bool {
    let is_of_this_boot = |intent: &Intent| penfold_process::boot_id().is_ok_and(|boot| boot == intent.boot);
    files.has_unwritten_survivors() && intent.is_none_or(is_of_this_boot)
}

/// Returns how a sandbox was started; `None` if the process that made the record was killed before it had begun.
fn mode_of(intent: Option<&Intent>, findings: &Findings) -> Option<StartMode> {
    match intent {
        Some(intent) if intent.detached.is_some() => Some(StartMode::Detached),
        None if findings.verified && findings.ended.is_empty() => None,
        Some(_) | None => Some(StartMode::Foreground),
    }
}

/// Writes the event that a sandbox was lost.
fn publish_lost(files: &Files, intent: &Intent, findings: &Findings, by: Option<Requester>) {
    let exit = files.exited().ok().flatten().and_then(|exited| exited.exit);
    let lost = EventKind::Lost {
        exit,
        verified: findings.verified,
        survivors: findings.survivors.len(),
        by: by.map(Box::new),
    };
    Journal::of(files, intent).publish([lost].into_iter().chain(findings.busy.iter().map(EventKind::from)));
}

/// Writes the end of a sandbox that had no supervisor. An unknown exit of its command is not invented.
///
/// If the disk has no room, the sandbox counts as lost, although nothing is left of it.
fn write_end(files: &Files, report: &Report) {
    let unknown = CommandExit { schema: SCHEMA, exit: None, cause: Cause::Lost, at_ms: time::now_ms() };
    let _ = files.write_end(&unknown, report);
}

/// Builds the report of a sandbox that had no supervisor.
fn lost(intent: &Intent, level: Level, findings: Findings) -> Report {
    Report {
        schema: SCHEMA,
        id: intent.id.short(),
        name: intent.name.clone(),
        labels: intent.labels.clone(),
        command: intent.command.clone(),
        level,
        cause: Cause::Lost,
        exit: None,
        limits: intent.limits,
        failure: None,
        life: intent.life().map(Life::number),
        started_at_ms: intent.made_at_ms,
        duration_ms: time::now_ms().saturating_sub(intent.made_at_ms),
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

/// Ends the remains of a sandbox that could not have a record: the processes with its marker, and its leaf in the usual
/// place.
///
/// # Errors
/// When /proc cannot be read.
pub fn recover_unrecorded(
    id: &str,
    named: bool,
    patience: Duration,
    root: Option<&Path>,
) -> io::Result<Findings> {
    let leaf = unrecorded_leaf(id)?;
    let intent = leaf.as_ref().and_then(|leaf| labelled(leaf, id));
    let marker = marked::build_marker(id, intent.as_ref(), None, named, root);
    let sparing = spared::spare_policy_of_intent(intent.as_ref(), root);
    let scope = scope(intent.as_ref(), id);
    let owned: Vec<_> = intent.iter().flat_map(|intent| owned_resources(intent, root, patience)).collect();
    let scratch = match intent {
        Some(intent) => intent.scratch,
        None => unrecorded_scratch(id)?,
    };
    let scratch = existing(scratch)?.map(|scratch| -> Box<dyn Resource> { Box::new(scratch) });
    let members = MemberTraces { marker: &marker, root, leaf, sparing };
    let findings = end(members, patience, scratch.into_iter().chain(scope).chain(owned).collect())?;
    if let Some(root) = root.filter(|_| findings.verified) {
        forget_survivors(root, id);
    }
    Ok(findings)
}

/// Returns the scope of a sandbox as a resource: without supervisors, all that is in it is the sandbox's.
fn scope(intent: Option<&Intent>, id: &str) -> Option<Box<dyn Resource>> {
    let scope = ScopeDir::of(intent?.scope.as_deref()?, id)?;
    Some(Box::new(scope))
}

/// Returns the resources that an intent names, in the order in which they were made. What does not outlive a boot is left out
/// after one, and what another sandbox of the state root has claimed: it is another's by now.
pub fn owned_resources(intent: &Intent, root: Option<&Path>, patience: Duration) -> Vec<Box<dyn Resource>> {
    let same_boot = penfold_process::boot_id().is_ok_and(|boot| boot == intent.boot);
    let deadline = ReleaseDeadline::after(patience);
    let planned = intent.resources.iter().filter(|planned| {
        let id = intent.id.short();
        (same_boot || planned.outlives_boot())
            && root.is_none_or(|root| !claims::is_anothers(root, planned, &id))
    });
    let made = planned.map(|planned| {
        let owned = OwnedResource::new(planned.clone(), intent.owner(), &deadline);
        match root {
            Some(root) => boxed(OrphanResource::new(root, &intent.id.short(), planned.clone(), owned)),
            None => boxed(owned),
        }
    });
    made.collect()
}

fn boxed(resource: impl Resource + 'static) -> Box<dyn Resource> {
    Box::new(resource)
}

fn existing(scratch: Option<PathBuf>) -> io::Result<Option<Scratch>> {
    scratch.map_or(Ok(None), Scratch::existing)
}

/// Returns the intent from the leaf of a detached sandbox whose record does not have it.
fn labelled(leaf: &Leaf, id: &str) -> Option<Intent> {
    let intent = LeafLabel::read(leaf.path(), id).intent.filter(|intent| is_about(intent, id))?;
    // Another user may have written the label, which chooses no file of this user.
    Some(Intent { event_log: None, ..intent })
}

/// Tells whether an intent names only resources of this sandbox. A resource must be named after the sandbox, whatever a
/// record says.
fn is_about(intent: &Intent, id: &str) -> bool {
    let own = LeafName::of(id);
    let mut paths = intent.leaf.iter().chain(&intent.scratch);
    intent.id.short() == id && paths.all(|path| own.ends(path))
}

/// Returns the scratch directory of a sandbox without a record, from the environment of its members.
fn unrecorded_scratch(id: &str) -> io::Result<Option<PathBuf>> {
    let marked = fingerprints::find_marked_processes(None, |_| false).complete()?;
    Ok(marked.get(id).and_then(|pids| fingerprints::scratch_of_processes(pids, id)))
}

/// Opens the leaf of a sandbox without a record: in the place of this process, or anywhere else.
fn unrecorded_leaf(id: &str) -> io::Result<Option<Leaf>> {
    if let Ok(place) = LeafPlace::find_here() {
        let usual = place.path().join(LeafName::of(id));
        if let Some(leaf) = Leaf::open(&usual).map_err(io::Error::other)? {
            return Ok(Some(leaf));
        }
    }
    match fingerprints::find_leaves().complete()?.get(id) {
        Some(path) => Leaf::open(path).map_err(io::Error::other),
        None => Ok(None),
    }
}

/// By what the members of a sandbox without a supervisor are known.
struct MemberTraces<'a> {
    marker: &'a Marker,
    /// The state root, which remembers survivors.
    root: Option<&'a Path>,
    leaf: Option<Leaf>,
    sparing: Option<SparePolicy>,
}

fn end(
    MemberTraces { marker, root, leaf, sparing }: MemberTraces<'_>,
    patience: Duration,
    mut resources: Vec<Box<dyn Resource>>,
) -> io::Result<Findings> {
    let mut proc = ProcFs::open()?;
    let search = marked::search_members(marker, root, &mut proc)?;
    let mut teardown = Teardown::new(proc, leaf, MemberScope::Host(Box::new(search)));
    if let Some(sparing) = sparing {
        teardown.spare(sparing);
    }
    teardown.want_details();
    let mut host = RecoveryHost { patience, begun: false };
    let mut findings = drive_teardown(&mut teardown, Phase::Running, &mut host, &mut resources);
    if let Some(root) = root.filter(|_| !findings.verified) {
        // Processes that may only have copied the marker are named below: they are no members, and not remembered.
        remember_survivors(root, &marker.sandbox, &findings.survivors);
    }
    marked::name_copies(marker, &mut findings)?;
    Ok(findings)
}

/// Returns the records without a supervisor that a [`sweep_orphans`] ends, among those whose turn it is; `own` is skipped. Among many
/// sandboxes, each call looks at the next 64.
///
/// # Errors
/// When the records cannot be listed.
pub fn find_orphans(registry: &Registry, own: &str) -> io::Result<Vec<String>> {
    let mut names = registry.next_names(own, SWEPT)?;
    names.retain(|name| matches!(registry.take_orphan(name), Ok(Some(record)) if is_swept(&record)));
    Ok(names)
}

/// Tells whether a record without a supervisor may be recovered without a request.
///
/// The answer is no for a sandbox that should continue, for a record of a newer penfold, and for a sandbox that runs
/// elsewhere.
fn is_swept(record: &Record) -> bool {
    let (is_meant, leaf) = match record.intent() {
        Ok(intent) => (!intent.detached.is_some_and(|detached| detached.keep), intent.leaf),
        Err(error) => (error.kind() != io::ErrorKind::Unsupported, None),
    };
    is_meant && !runs_elsewhere(record, leaf.as_deref())
}

/// Tells whether a record is a copy of the one that a supervisor in another mount namespace holds.
fn runs_elsewhere(record: &Record, leaf: Option<&Path>) -> bool {
    let root = record.files().path().ancestors().nth(2).unwrap_or(Path::new("/"));
    let subject =
        EvidenceSubject { id: record.name(), leaf, has_record: true, has_unwritten_survivors: false };
    !elsewhere::supervisors_elsewhere(&Fingerprints::below(root), &subject).is_empty()
}

/// Tells whether [`recover_lost`] would recover this sandbox.
///
/// # Errors
/// When the record cannot be opened.
pub fn is_lost(registry: &Registry, name: &str) -> io::Result<bool> {
    let record = registry.take_orphan(name).map_err(io::Error::other)?;
    Ok(record.is_some_and(|record| is_swept(&record)))
}

/// Ends the remains of a sandbox that has lost all its supervisors; `None` if the sandbox has a supervisor, has ended, or
/// should continue without one.
///
/// # Errors
/// When the record cannot be opened, or /proc cannot be read; the record stays.
pub fn recover_lost(registry: &Registry, name: &str, patience: Duration) -> io::Result<Option<Findings>> {
    match registry.take_orphan(name).map_err(io::Error::other)? {
        Some(record) if is_swept(&record) => recover_sandbox(record, false, patience, None).map(Some),
        _ => Ok(None),
    }
}

/// Ends the remains of these sandboxes, if they have no supervisor. A record that cannot be recovered stays for a later sweep.
pub fn sweep_orphans(registry: &Registry, orphans: &[String], patience: Duration) {
    for name in orphans {
        if let Ok(Some(record)) = registry.take_orphan(name)
            && is_swept(&record)
        {
            let _ = recover_sandbox(record, false, patience, None);
        }
    }
}

struct RecoveryHost {
    patience: Duration,
    begun: bool,
}

impl TeardownHost for RecoveryHost {
    fn wait(&mut self, mut watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> Option<LifecycleEvent> {
        if !std::mem::replace(&mut self.begun, true) {
            return Some(LifecycleEvent::KillRequested);
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let _ = rustix::event::poll(&mut watch, timeout.as_ref());
        None
    }

    fn stop_policy(&self) -> StopPolicy {
        StopPolicy { patience: self.patience, ..StopPolicy::default() }
    }

    fn stuck(&mut self, _: &Findings, _: Option<Exit>) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}
