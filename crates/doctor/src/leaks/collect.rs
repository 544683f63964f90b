//! Ends a leak.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use penfold_cgroup::Leaf;
use penfold_process::ProcFs;
use penfold_resource::{OwnedResource, ReleaseDeadline};
use penfold_teardown::{Findings, MemberScope, Resource, StopPolicy, Survivor, Teardown};
use rustix::event::Timespec;
use rustix::fs::{AtFlags, FlockOperation};
use rustix::io::Errno;

use super::unfinished::{is_unfinished_record, unfinished_files};
use super::{Leak, Thing};
use penfold_control::is_supervised;
use penfold_state::counters::Counts;
use penfold_state::lock::open_directory;
use penfold_state::marked;
use penfold_state::record::{Record, Registry};
use penfold_state::recovery;
use penfold_state::{Requester, Scratch, note_survivors, survivors};

/// Ends and removes a leak, and verifies that it is gone. A leak that went by itself counts as gone.
///
/// If a user has `named` the sandbox, a marker alone makes a process a member.
///
/// # Errors
/// When the attempt could not be made; the leak is unchanged.
pub fn collect_leak(leak: &Leak, state_root: &Path, named: bool, patience: Duration) -> io::Result<Findings> {
    let collected = remove(leak, state_root, named, patience);
    // The recovery of a record counts by itself. The record of an ended sandbox is no leak.
    let is_counted = matches!(
        leak.thing,
        Thing::Survivor { .. } | Thing::Record { begun: true, .. } | Thing::Ended { .. }
    );
    if !leak.is_alive() && !is_counted {
        let mended = collected.as_ref().is_ok_and(|findings| findings.verified);
        let _ = Counts::of_leak(leak.thing.kind(), mended).add_to(state_root);
    }
    collected
}

fn remove(leak: &Leak, state_root: &Path, named: bool, patience: Duration) -> io::Result<Findings> {
    let gone = || Ok(Findings { verified: true, ..Findings::default() });
    match &leak.thing {
        Thing::Survivor { .. } => end_survivors(&leak.id, state_root, named, patience),
        Thing::Record { begun: true, .. } => {
            let Some(record) = take(state_root, &leak.id, patience)? else { return gone() };
            remove_unfinished(&record)?;
            recovery::recover_sandbox(record, named, patience, Some(Requester::this("gc")))
        }
        Thing::Ended { .. } => {
            if let Some(mut record) = take_ended(state_root, &leak.id, patience)? {
                record.release(false).map_err(io::Error::other)?;
            }
            gone()
        }
        Thing::File { .. } => {
            if let Some(record) = take(state_root, &leak.id, patience)? {
                remove_unfinished(&record)?;
            }
            gone()
        }
        Thing::Name { .. } => {
            if let Some(name) = &leak.name {
                penfold_state::names::forget_name(state_root, name, &leak.id)?;
            }
            gone()
        }
        Thing::Socket { .. } | Thing::Unreachable { .. } => {
            Err(io::Error::other("a supervisor looks after it"))
        }
        Thing::Record { path, .. } => remove_bare_record(path).and_then(|()| gone()),
        Thing::Container { path, .. } => {
            let left = penfold_oci::end_lost(state_root, path, patience)?;
            let survivors: Vec<Survivor> =
                left.into_iter().map(|reason| Survivor::Unknown { reason }).collect();
            Ok(Findings { verified: survivors.is_empty(), survivors, ..Findings::default() })
        }
        Thing::Processes => recovery::recover_unrecorded(&leak.id, named, patience, Some(state_root)),
        Thing::Cgroup { path } => {
            let Some(_lock) = lock(path, patience)? else { return gone() };
            let Some(cgroup) = Leaf::open(path).map_err(io::Error::other)? else { return gone() };
            end(leak, &Request { named, patience, state_root }, Some(cgroup), Vec::new())
        }
        Thing::Netns { .. }
        | Thing::Link { .. }
        | Thing::Mount { .. }
        | Thing::Loop { .. }
        | Thing::Directory { boot: Some(_), .. } => release(leak, &Request { named, patience, state_root }),
        Thing::Directory { path, boot: None } => {
            let Some(_lock) = lock(path, patience)? else { return gone() };
            let Some(scratch) = Scratch::existing(path.clone())? else { return gone() };
            end(leak, &Request { named, patience, state_root }, None, vec![Box::new(scratch)])
        }
    }
}

/// Removes a record that was never used.
fn remove_bare_record(path: &Path) -> io::Result<()> {
    if !is_unfinished_record(path) {
        return Ok(());
    }
    match rustix::fs::rmdir(path) {
        // The maker of the directory lives, and continues.
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Tries again to end members that could not be ended.
fn end_survivors(id: &str, state_root: &Path, named: bool, patience: Duration) -> io::Result<Findings> {
    match look(state_root, id)? {
        Turn::Ours(record) => recovery::recover_sandbox(record, named, patience, Some(Requester::this("gc"))),
        Turn::Gone if !is_supervised(id, None) => {
            recovery::recover_unrecorded(id, named, patience, Some(state_root))
        }
        // Its supervisor goes on to kill them.
        Turn::Another | Turn::Gone => living_survivors(state_root, id),
    }
}

/// Returns the members that could not be ended, and live.
fn living_survivors(state_root: &Path, id: &str) -> io::Result<Findings> {
    let mut proc = ProcFs::open()?;
    let living = survivors::living_survivors(state_root, id)?;
    let mut survivors: Vec<Survivor> = living.iter().map(|alive| alive.describe(&mut proc)).collect();
    let registry = Registry::open_existing(state_root).map_err(io::Error::other)?;
    let files = registry.and_then(|registry| registry.look(id).ok().flatten());
    if survivors.is_empty() && files.is_some_and(|files| files.has_unwritten_survivors()) {
        survivors.push(Survivor::Unknown { reason: "its supervisor has members left".to_owned() });
    }
    Ok(Findings { verified: survivors.is_empty(), survivors, ..Findings::default() })
}

/// Takes over the record of a sandbox without a supervisor; `None` once the record is gone.
fn take(state_root: &Path, id: &str, patience: Duration) -> io::Result<Option<Record>> {
    in_turn(patience, || look(state_root, id))
}

/// Takes over the record of an ended sandbox; `None` once the record is gone.
///
/// A record without a report may be under removal by another command, which removes report and intent in any order.
fn take_ended(state_root: &Path, id: &str, patience: Duration) -> io::Result<Option<Record>> {
    let ended = |turn| match turn {
        Turn::Ours(record) if !Record::files(&record).has_ended() => Turn::Another,
        turn => turn,
    };
    in_turn(patience, || look(state_root, id).map(ended)).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::other("it has not ended, or another process holds its lock"),
        _ => error,
    })
}

fn look(state_root: &Path, id: &str) -> io::Result<Turn<Record>> {
    let Some(registry) = Registry::open_existing(state_root).map_err(io::Error::other)? else {
        return Ok(Turn::Gone);
    };
    Ok(match registry.take(id).map_err(io::Error::other)? {
        Some(record) => Turn::Ours(record),
        None if registry.holds(id) => Turn::Another,
        None => Turn::Gone,
    })
}

/// Locks a directory that has no record to lock; `None` once the directory is gone.
///
/// Without the lock, two commands would report each other's removals as their own.
fn lock(path: &Path, patience: Duration) -> io::Result<Option<OwnedFd>> {
    in_turn(patience, || {
        let dir = match open_directory(path) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(Turn::Gone),
            Err(errno) => return Err(errno.into()),
        };
        match rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Turn::Ours(dir)),
            Err(Errno::WOULDBLOCK) => Ok(Turn::Another),
            Err(errno) => Err(errno.into()),
        }
    })
}

/// Whether this command may clean something up.
enum Turn<T> {
    Ours(T),
    Another,
    Gone,
}

/// Waits until this command may clean something up, or it is gone. Another command may be doing that, or probing the
/// lock.
fn in_turn<T>(patience: Duration, mut look: impl FnMut() -> io::Result<Turn<T>>) -> io::Result<Option<T>> {
    const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    let begun = Instant::now();
    loop {
        match look()? {
            Turn::Ours(thing) => return Ok(Some(thing)),
            Turn::Gone => return Ok(None),
            Turn::Another if begun.elapsed() > patience => {
                return Err(io::Error::new(io::ErrorKind::WouldBlock, "another process holds its lock"));
            }
            Turn::Another => {
                let _ = rustix::event::poll(&mut [], Some(&PAUSE));
            }
        }
    }
}

/// Removes the temporary files whose writers died before the rename.
fn remove_unfinished(record: &Record) -> io::Result<()> {
    for name in unfinished_files(record.files())? {
        match rustix::fs::unlinkat(record.files().dir(), &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// How a leak is to be collected.
struct Request<'a> {
    /// A user has named the sandbox.
    named: bool,
    patience: Duration,
    state_root: &'a Path,
}

/// Releases a resource without a record, after all processes with the marker.
fn release(leak: &Leak, request: &Request<'_>) -> io::Result<Findings> {
    let Some(trace) = leak.thing.trace() else {
        return Err(io::Error::other("it is no resource"));
    };
    let mut owner = trace.owner(&leak.id);
    if owner.boot.is_empty() {
        owner.boot = penfold_process::boot_id().unwrap_or_default();
    }
    // Its sandbox holds this lock while it lives, perhaps where its processes cannot be seen.
    let _lock = match &leak.thing {
        Thing::Directory { path, .. } => match lock(path, request.patience)? {
            None => return Ok(Findings { verified: true, ..Findings::default() }),
            lock => lock,
        },
        _ => None,
    };
    let planned = trace.planned(&leak.id).map_err(io::Error::other)?;
    let resource = OwnedResource::new(planned, owner, &ReleaseDeadline::after(request.patience));
    end(leak, request, None, vec![Box::new(resource)])
}

fn end(
    found: &Leak,
    request: &Request<'_>,
    leaf: Option<Leaf>,
    mut resources: Vec<Box<dyn Resource>>,
) -> io::Result<Findings> {
    let mut proc = ProcFs::open()?;
    let marker = marked::build_marker(&found.id, None, None, request.named, Some(request.state_root));
    let search = marked::search_members(&marker, Some(request.state_root), &mut proc)?;
    let mut teardown = Teardown::new(proc, leaf, MemberScope::Host(Box::new(search)));
    let stop_policy =
        StopPolicy { grace: Duration::ZERO, patience: request.patience, ..StopPolicy::default() };
    let mut findings = penfold_teardown::end_members(&mut teardown, &stop_policy, &mut resources);
    note_survivors(request.state_root, &found.id, &findings);
    marked::name_copies(&marker, &mut findings)?;
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> (tempfile::TempDir, Leak) {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("penfold-0123456789ab");
        std::fs::create_dir(&path).unwrap();
        let thing = Thing::Directory { path, boot: None };
        let id = "0123456789ab".to_owned();
        (base, Leak { id, name: None, thing, processes: Vec::new(), age_s: 0, claimed: true })
    }

    /// spec: 5.3
    #[test]
    fn what_another_command_is_just_removing_is_gone() {
        let (base, leak) = made();
        let path = leak.thing.path().unwrap().to_owned();
        let lock = lock(&path, Duration::ZERO).unwrap().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _ = rustix::event::poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 30_000_000 }));
                std::fs::remove_dir(path).unwrap();
                drop(lock);
            });
            assert!(collect_leak(&leak, base.path(), false, Duration::from_secs(20)).unwrap().verified);
        });
    }

    #[test]
    fn one_that_had_ended_and_has_no_report_any_more_is_kept_unless_somebody_is_removing_it() {
        let (base, leak) = made();
        let path = base.path().join("sandboxes").join(&leak.id);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("intent.json"), "{}").unwrap();
        let leak = Leak { thing: Thing::Ended { path: path.clone(), command: String::new() }, ..leak };
        let error = collect_leak(&leak, base.path(), false, Duration::from_millis(30)).unwrap_err();
        assert!(error.to_string().contains("it has not ended"), "{error}");
        assert!(path.join("intent.json").try_exists().unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = rustix::event::poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 30_000_000 }));
                std::fs::remove_file(path.join("intent.json")).unwrap();
            });
            assert!(collect_leak(&leak, base.path(), false, Duration::from_secs(20)).unwrap().verified);
        });
        assert!(!path.try_exists().unwrap());
    }

    /// spec: 10.5
    #[test]
    fn each_kind_of_leak_that_is_collected_counts() {
        use penfold_state::counters::{self, CounterValue, LEAKS};
        let not_collected = ["survivor", "ended", "socket", "unreachable"];
        let mut kinds: Vec<&str> =
            Thing::KINDS.into_iter().filter(|kind| !not_collected.contains(kind)).collect();
        kinds.sort_unstable();
        let mut counted: Vec<&str> = LEAKS.into_iter().collect();
        counted.sort_unstable();
        assert_eq!(kinds, counted);
        let (base, leak) = made();
        collect_leak(&leak, base.path(), false, Duration::ZERO).unwrap();
        let families = counters::read_counters(base.path()).unwrap().families();
        for name in ["leaks_found", "leaks_mended"] {
            let family = families.iter().find(|family| family.name == name).unwrap();
            let counted = family.samples.iter().filter(|sample| sample.value != CounterValue::Count(0));
            let counted: Vec<_> =
                counted.map(|sample| (sample.labels.clone(), sample.value.clone())).collect();
            assert_eq!(counted, [(vec![("kind", "directory")], CounterValue::Count(1))]);
        }
    }

    /// spec: 5.3
    #[test]
    fn what_another_command_does_not_let_go_of_is_left_to_it() {
        let (base, leak) = made();
        let path = leak.thing.path().unwrap();
        let _lock = lock(path, Duration::ZERO).unwrap().unwrap();
        let error = collect_leak(&leak, base.path(), false, Duration::from_millis(30)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(path.try_exists().unwrap());
    }
}
