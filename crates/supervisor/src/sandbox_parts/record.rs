//! Writes the record of a sandbox before its resources are created.

use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

use penfold_process::ProcFs;
use penfold_state::error_chain;
use penfold_state::intent::shorten_command;
use penfold_state::outside::OutsideNote;
use penfold_state::record::{SCHEMA, StateError};
use penfold_state::{
    Contain, Detach, DetachedIntent, EnclosingNotes, Intent, LaunchSource, NestedNotes, Record, Registry,
    SparePlan, Spec,
};
use penfold_teardown::Resource;

use super::{millis_since_1970, words};
use crate::detached_parts::DetachedParts;
use crate::environment;
use crate::setup::Setup;

/// Builds the intent: the resources that the sandbox is going to own.
pub(super) fn build_intent(setup: &Setup, leaf: Option<PathBuf>, proc: &mut ProcFs) -> Intent {
    let spec = &setup.spec;
    let own = rustix::process::getpid();
    let home = proc.cgroups(own).ok().flatten();
    let home = home.as_deref().and_then(penfold_teardown::unified_cgroup).map(str::to_owned);
    let spare = (!spec.spare.is_empty() || spec.allow_outside).then(|| {
        // In a scope this process is no longer in the cgroup of the caller.
        let caller = penfold_teardown::unified_cgroup(&setup.caller_cgroup).map(str::to_owned);
        SparePlan {
            rules: spec.spare.clone(),
            home: caller.or_else(|| home.clone()),
            allows_outside: spec.allow_outside,
        }
    });
    let stat = proc.stat(own).ok().flatten();
    let has_kernel_bound = leaf.is_some() || spec.contain == Contain::Pidns;
    let above = stat.as_ref().filter(|_| !has_kernel_bound).and_then(|stat| proc.ancestors(stat).ok());
    Intent {
        schema: SCHEMA,
        id: spec.id,
        name: spec.name.clone(),
        labels: spec.labels.clone(),
        command: shorten_command(words(setup)),
        boot: penfold_process::boot_id().unwrap_or_default(),
        within: environment::enclosing_sandboxes(&spec.environment),
        leaf,
        limits: spec.limits,
        scope: setup.scope.clone(),
        scratch: setup.scratch.clone(),
        resources: spec.resources.clone(),
        workspace: spec.detach.as_ref().and_then(|_| workspace(setup)),
        made_at_ms: millis_since_1970(SystemTime::now()),
        signal: Some(spec.signal.as_raw()),
        grace_ms: u64::try_from(spec.grace.as_millis()).ok(),
        home,
        session: Some(setup.session).filter(|session| *session > 0 && !setup.own_session),
        ancestors: above.unwrap_or_default(),
        since: stat.map(|stat| stat.start),
        patience_ms: u64::try_from(spec.patience.as_millis()).ok(),
        event_log: spec.event_log.clone(),
        spare,
        identity: spec.identity.clone(),
        profile: spec.profile,
        outside: spec.outside.clone(),
        detached: spec.detach.as_ref().map(|detach| DetachedIntent {
            root: std::path::absolute(&spec.state_root).ok(),
            owner: setup.owner_id,
            keep: detach.keep,
            remove: detach.remove,
            terminal: detach.terminal,
            ready: detach.ready.clone(),
            restart: detach.restart,
            life: detach.life.clone(),
        }),
    }
}

/// Returns the directory in which the command starts.
fn workspace(setup: &Setup) -> Option<PathBuf> {
    let own = || std::env::current_dir().ok();
    let given = setup.spec.directory.clone().or_else(|| setup.scratch.clone());
    given.map_or_else(own, |given| std::path::absolute(given).ok())
}

/// Notes that the sandbox is outside of the one from which it is started. This comes first: the end of that one ends what it does not
/// know to be outside.
pub(super) fn leave_outside(
    setup: &Setup,
    intent: &Intent,
    proc: &mut ProcFs,
    resources: &mut Vec<Box<dyn Resource>>,
) -> Result<Option<OutsideNote>, String> {
    let Some(of) = &setup.spec.outside else { return Ok(None) };
    let note = proc.stat(rustix::process::getpid()).and_then(|stat| {
        let own = stat.ok_or(rustix::io::Errno::SRCH)?.id();
        OutsideNote::leave(&setup.spec.state_root, of, intent, own)
    });
    let note = note.map_err(|error| {
        format!("cannot note that it is outside of sandbox {of}: {}", error_chain(&error))
    })?;
    // At index 0, so released last.
    resources.insert(0, Box::new(note.clone()));
    Ok(Some(note))
}

/// Writes the record. On a host without a place for it the sandbox runs without a record.
pub(super) fn write_record(
    setup: &Setup,
    intent: &Intent,
    resources: &mut Vec<Box<dyn Resource>>,
    missing: &mut Vec<String>,
) -> Option<NestedNotes> {
    let spec = &setup.spec;
    match reserve(spec, intent, resources) {
        Ok((registry, record)) => {
            let nested = NestedNotes::of(&registry, record.files());
            resources.push(Box::new(record));
            // Resources are released in reverse order: nested sandboxes must end before this record is removed.
            resources.push(Box::new(nested.clone()));
            Some(nested)
        }
        Err(error) => {
            missing.push(format!("no record: {}", error_chain(&error)));
            None
        }
    }
}

/// Creates the record. Before that, notes it in the records of the enclosing sandboxes.
fn reserve(
    spec: &Spec,
    intent: &Intent,
    resources: &mut Vec<Box<dyn Resource>>,
) -> Result<(Registry, Record), StateError> {
    let registry = Registry::open(&spec.state_root)?;
    if let Some(notes) = EnclosingNotes::leave(&registry, intent) {
        // At index 0, so released last: the notes name this sandbox while any other resource remains.
        resources.insert(0, Box::new(notes));
    }
    let record = registry.reserve(intent)?;
    Ok((registry, record))
}

/// Turns the record of the former life into that of the next one. The record is not released if this fails.
fn begin_life(
    spec: &Spec,
    intent: &Intent,
    record: Record,
    is_requested: bool,
    resources: &mut Vec<Box<dyn Resource>>,
) -> Result<(Registry, Record), String> {
    let registry = Registry::open(&spec.state_root)
        .map_err(|error| format!("no record can be kept: {}", error_chain(&error)))?;
    if let Some(notes) = EnclosingNotes::leave(&registry, intent) {
        resources.insert(0, Box::new(notes));
    }
    record.begin_life(intent, is_requested).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            format!("sandbox {} was restarted or ended by another command", record.name())
        }
        _ => format!("the record of sandbox {} cannot be changed: {error}", record.name()),
    })?;
    Ok((registry, record))
}

/// Writes the record of a detached sandbox. Without a record no client could find the sandbox, so a failure is an
/// error.
pub(super) fn write_detached(
    setup: &Setup,
    intent: &Intent,
    (detach, launch): (&Detach, Option<LaunchSource>),
    outside_note: Option<OutsideNote>,
    resources: &mut Vec<Box<dyn Resource>>,
) -> Result<DetachedParts, String> {
    let spec = &setup.spec;
    let has_former = matches!(launch, Some(LaunchSource::Former { .. }));
    let (registry, record) = match launch {
        Some(LaunchSource::Former { record, is_requested }) => {
            begin_life(spec, intent, record, is_requested, resources)?
        }
        launch => {
            let (registry, record) = reserve(spec, intent, resources)
                .map_err(|error| format!("no record can be kept: {}", error_chain(&error)))?;
            if let Some(LaunchSource::New(bytes)) = launch
                && let Err(error) = record.files().put_launch(&bytes)
            {
                resources.push(Box::new(record));
                return Err(format!("no launch file can be kept: {error}"));
            }
            (registry, record)
        }
    };
    penfold_sys::crash_point!("launch-kept");
    let nested = NestedNotes::of(&registry, record.files());
    match DetachedParts::open(&record, intent, detach, nested.clone(), outside_note) {
        Ok(detached) => {
            resources.push(Box::new(detached.keep(record, has_former)));
            resources.push(Box::new(nested));
            Ok(detached)
        }
        Err(error) => {
            if has_former {
                record.return_to_former();
            } else {
                resources.push(Box::new(record));
            }
            Err(format!("cannot make its socket and log: {error}"))
        }
    }
}
