//! The history of a state root: the reports of the last foreground sandboxes that failed or left something, `<root>/history/<id>`.
//! They outlive their records, which end with the sandboxes.
//!
//! The history is news, never evidence: no part of penfold acts on it. A report that cannot be written is lost, and changes nothing
//! else.
//!
//! Invariants:
//! - A reader sees a whole report or none. Writers need no lock: each writes the file of its own sandbox, and removes only files
//!   that are older than the last [`KEPT`].
//! - A file has at most [`LARGEST`] bytes, so all files together stay below 4 MiB.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use penfold_teardown::{Cause, Findings, SparedProcess, Survivor};
use rustix::fs::{AtFlags, CWD, Dir, Mode};
use rustix::io::Errno;

use crate::id::Id;
use crate::json;
use crate::outcome::{
    DescribedProcess, ExitStatus, OmittedCounts, Report, StartFailure, cut_command, cut_labels, cut_text,
};
use crate::record::{StateError, open_private};

/// The directory below the state root.
const DIRECTORY: &str = "history";
/// The number of reports that are kept.
pub const KEPT: usize = 200;
/// The largest file.
pub const LARGEST: usize = 20 << 10;
/// The age in seconds at which an unfinished file has lost its writer.
const UNFINISHED: i64 = 60;
/// The lengths of texts and lists that are tried until a report is small enough.
const CUTS: [(usize, usize); 5] = [(4096, 100), (1024, 40), (256, 15), (64, 4), (0, 0)];

/// Tells whether a report says that a command failed, or that its sandbox left something.
#[must_use]
pub fn is_remarkable(report: &Report) -> bool {
    let findings = &report.findings;
    !findings.verified
        || report.exit != Some(ExitStatus::Code(0))
        || report.cause != Cause::Exit
        || report.failure.is_some()
        || findings.strays().next().is_some()
}

/// Keeps the report of a foreground sandbox, if it is remarkable. Otherwise this makes no system call.
///
/// # Errors
/// The report is not kept: there is no state root, no room, or a directory of another user.
pub fn keep_report(root: &Path, report: &Report) -> io::Result<()> {
    if !is_remarkable(report) || !Id::is_short(&report.id) {
        return Ok(());
    }
    let top = open_private(CWD, root).map_err(io::Error::other)?;
    match rustix::fs::mkdirat(&top, DIRECTORY, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let dir = open_private(top.as_fd(), Path::new(DIRECTORY)).map_err(io::Error::other)?;
    let written = json::replace_json(dir.as_fd(), &report.id, &bounded(report)?);
    // Also after an error: on a full disk this makes room.
    prune(&dir, &report.id)?;
    written
}

/// Keeps the report of a later try to end a sandbox. What the first report says of the command stays: the later one knows nothing of it.
///
/// # Errors
/// Those of [`keep_report`].
pub fn keep_again(root: &Path, report: &Report) -> io::Result<()> {
    let kept = read_history(root).unwrap_or_default();
    let Some(first) = kept.into_iter().find(|kept| kept.id == report.id) else {
        return keep_report(root, report);
    };
    let mut findings = report.findings.clone();
    findings.ended = first.findings.ended.iter().cloned().chain(findings.ended).collect();
    keep_report(root, &Report { findings, by: report.by.clone().or_else(|| first.by.clone()), ..first })
}

/// Returns the kept reports in no order. Damaged files are left out.
///
/// # Errors
/// When the directory cannot be read, or belongs to another user.
pub fn read_history(root: &Path) -> Result<Vec<Report>, StateError> {
    let is_missing = |error: &StateError| matches!(error, StateError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound);
    let opened = open_private(CWD, root).and_then(|top| open_private(top.as_fd(), Path::new(DIRECTORY)));
    let dir = match opened {
        Ok(dir) => dir,
        Err(error) if is_missing(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let failed = |source| StateError::Io { act: "read", path: root.join(DIRECTORY), source };
    let mut reports = Vec::new();
    for name in names(&dir).map_err(failed)? {
        let Some(name) = name.to_str().ok().filter(|name| Id::is_short(name)) else { continue };
        let report = json::read_json::<Report>(dir.as_fd(), name).ok().flatten();
        reports.extend(report.filter(|report| report.id == name));
    }
    Ok(reports)
}

/// Removes the files that are older than the last [`KEPT`], and files without a writer. `own` stays: its time may be wrong.
fn prune(dir: &OwnedFd, own: &str) -> io::Result<()> {
    let names = names(dir)?;
    if names.len() <= KEPT {
        return Ok(());
    }
    let now = i64::try_from(crate::time::now_ms() / 1000).unwrap_or(i64::MAX);
    let mut kept = Vec::new();
    for name in names {
        let Ok(stat) = rustix::fs::statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let time = (stat.st_mtime, stat.st_mtime_nsec);
        match name.to_str() {
            Ok(text) if Id::is_short(text) => kept.push((text != own, std::cmp::Reverse(time), name)),
            Ok(text) if is_unfinished(text) && now.saturating_sub(stat.st_mtime) > UNFINISHED => {
                let _ = rustix::fs::unlinkat(dir, &name, AtFlags::empty());
            }
            Ok(_) | Err(_) => {}
        }
    }
    kept.sort_unstable();
    for (.., name) in kept.into_iter().skip(KEPT) {
        // Another writer may have removed it, and a directory is not ours.
        let _ = rustix::fs::unlinkat(dir, &name, AtFlags::empty());
    }
    Ok(())
}

/// Tells whether a name is that of a report before its rename.
fn is_unfinished(name: &str) -> bool {
    json::unfinished_file(name).is_some_and(|(id, _)| Id::is_short(id))
}

fn names(dir: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    Ok(names)
}

/// Shortens a report until it has at most [`LARGEST`] bytes. The strays and the survivors come first.
fn bounded(report: &Report) -> io::Result<Report> {
    let fits = |report: &Report| Ok::<_, io::Error>(serde_json::to_vec(report)?.len() < LARGEST);
    // An entry has more than 60 bytes.
    if report.findings.ended.len() < LARGEST / 60 && fits(report)? {
        return Ok(report.clone());
    }
    for (text, entries) in CUTS {
        let short = shortened(report, text, entries);
        if fits(&short)? {
            return Ok(short);
        }
    }
    Err(io::ErrorKind::FileTooLarge.into())
}

/// Shortens each text to `most` bytes, and each list to `entries`.
fn shortened(report: &Report, most: usize, entries: usize) -> Report {
    let mut short = report.clone();
    let Report { command, labels, missing, weaker, running, leaks, failure, findings, .. } = &mut short;
    cut_command(command, most);
    cut_labels(labels, most);
    missing.truncate(entries);
    running.truncate(entries / 4);
    leaks.truncate(entries / 4);
    for DescribedProcess { command, directory, test, parents, ports, files, .. } in
        running.iter_mut().chain(leaks)
    {
        cut_text(command, most / 4);
        if let Some(test) = test {
            cut_text(test, most / 4);
        }
        directory.take_if(|directory| directory.as_os_str().len() > most / 4);
        parents.truncate(4);
        ports.truncate(4);
        files.truncate(4);
    }
    if let Some(StartFailure::Other(why)) = failure {
        cut_text(why, most);
    }
    for text in missing.iter_mut().chain(weaker) {
        cut_text(text, most);
    }
    shorten(findings, most, entries);
    short.omitted = Some(OmittedCounts {
        ended: report.findings.ended.len().saturating_sub(short.findings.ended.len()),
        strays: report.findings.strays().count().saturating_sub(short.findings.strays().count()),
        survivors: report.findings.survivors.len().saturating_sub(short.findings.survivors.len()),
    });
    short
}

fn shorten(findings: &mut Findings, most: usize, entries: usize) {
    findings.ended.sort_by_key(|ended| !ended.stray);
    findings.ended.truncate(entries);
    for ended in &mut findings.ended {
        for text in [Some(&mut ended.name), ended.command.as_mut(), ended.why.as_mut()].into_iter().flatten()
        {
            cut_text(text, most / 16);
        }
    }
    findings.spared.truncate(entries / 4);
    for SparedProcess { name, command, rule, cgroup, .. } in &mut findings.spared {
        let texts = [Some(name), Some(command), Some(rule), cgroup.as_mut()];
        texts.into_iter().flatten().for_each(|text| cut_text(text, most / 4));
    }
    findings.survivors.truncate(entries / 2);
    for survivor in &mut findings.survivors {
        let (Survivor::Process { reason, .. }
        | Survivor::Resource { reason, .. }
        | Survivor::Unknown { reason }) = survivor;
        cut_text(reason, most / 4);
    }
    findings.steps.truncate(entries);
    for step in &mut findings.steps {
        cut_text(&mut step.what, most / 4);
        step.error.iter_mut().for_each(|error| cut_text(error, most / 4));
    }
    if let Some(busy) = &mut findings.busy {
        busy.pids.truncate(entries);
    }
    findings.busy.take_if(|_| entries == 0);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use penfold_cgroup::Limits;
    use penfold_teardown::report::{RmdirBusy, TeardownStep};
    use penfold_teardown::{EndedBy, EndedMember, Level};

    use super::*;
    use crate::outcome::FormerParent;

    fn report() -> Report {
        Report {
            life: None,
            schema: json::SCHEMA,
            id: "0123456789ab".to_owned(),
            name: None,
            labels: BTreeMap::new(),
            command: Vec::new(),
            level: Level::Cgroup,
            cause: Cause::Exit,
            exit: Some(ExitStatus::Code(0)),
            limits: Limits::default(),
            failure: None,
            started_at_ms: 1,
            duration_ms: 1,
            missing: Vec::new(),
            weaker: None,
            running: Vec::new(),
            leaks: Vec::new(),
            objects: Vec::new(),
            engine_clients: Vec::new(),
            omitted: None,
            by: None,
            findings: Findings { verified: true, ..Findings::default() },
        }
    }

    fn stray(text: &str, stray: bool) -> EndedMember {
        EndedMember {
            pid: 1,
            start_time: 1,
            name: text.to_owned(),
            command: Some(text.to_owned()),
            how: EndedBy::Kill,
            signal: None,
            stray,
            why: Some(text.to_owned()),
        }
    }

    /// spec: 26.1
    #[test]
    fn only_a_clean_end_is_not_remarkable() {
        assert!(!is_remarkable(&report()));
        let left = Findings { ended: vec![stray("x", true)], verified: true, ..Findings::default() };
        let asked = Findings { ended: vec![stray("x", false)], verified: true, ..Findings::default() };
        assert!(!is_remarkable(&Report { findings: asked, ..report() }));
        for remarkable in [
            Report { findings: left, ..report() },
            Report { findings: Findings::default(), ..report() },
            Report { exit: Some(ExitStatus::Code(1)), ..report() },
            Report { exit: Some(ExitStatus::Signal(9)), ..report() },
            Report { exit: None, ..report() },
            Report { cause: Cause::Timeout, ..report() },
            Report { cause: Cause::Stop, ..report() },
            Report { failure: Some(StartFailure::NotFound), ..report() },
        ] {
            assert!(is_remarkable(&remarkable), "{remarkable:?}");
        }
    }

    /// spec: 26.3
    #[test]
    fn whatever_a_report_holds_it_is_cut_to_the_bound() {
        // JSON makes six bytes of each of these.
        let text = "\u{1}".repeat(2_000);
        let words = || vec![text.clone(); 50];
        let parent = FormerParent { pid: 1, command: text.clone() };
        let leak = DescribedProcess {
            parents: vec![parent; 50],
            ports: words(),
            files: vec![text.clone().into(); 50],
            test: Some(text.clone()),
            directory: Some(text.clone().into()),
            ..DescribedProcess::of(&stray(&text, true))
        };
        let spared = SparedProcess {
            pid: 1,
            start_time: 1,
            name: text.clone(),
            command: text.clone(),
            rule: text.clone(),
            cgroup: Some(text.clone()),
        };
        let survivor = Survivor::Process {
            pid: 1,
            start_time: 1,
            name: text.clone(),
            state: 'D',
            wait_channel: Some(text.clone()),
            reason: text.clone(),
        };
        let step = TeardownStep { what: text.clone(), at_us: 0, took_us: 0, error: Some(text.clone()) };
        let busy =
            RmdirBusy { path: text.clone().into(), errno: 16, pids: vec![1; 9999], tries: 1, took_us: 1 };
        let findings = Findings {
            ended: [vec![stray(&text, false); 300], vec![stray(&text, true); 200]].concat(),
            spared: vec![spared; 100],
            survivors: vec![survivor; 100],
            steps: vec![step; 100],
            busy: Some(busy),
            ..Findings::default()
        };
        let full = Report {
            command: words(),
            labels: (0..100).map(|number| (format!("{number}{text}"), text.clone())).collect(),
            failure: Some(StartFailure::Other(text.clone())),
            missing: words(),
            weaker: Some(text.clone()),
            running: vec![leak.clone(); 8],
            leaks: vec![leak; 50],
            findings,
            ..report()
        };
        let size = |report: &Report| serde_json::to_vec(report).unwrap().len();
        let cut = bounded(&full).unwrap();
        assert!(size(&cut) < LARGEST, "{}", size(&cut));
        let listed = cut.findings.ended.len();
        assert!(cut.findings.ended.iter().all(|ended| ended.stray), "strays come first");
        let omitted = cut.omitted.unwrap();
        assert_eq!((omitted.ended, omitted.strays), (500 - listed, 200 - listed));
        assert_eq!(omitted.survivors, 100 - cut.findings.survivors.len());
        assert_eq!(bounded(&report()).unwrap(), report(), "what fits is kept whole");
    }

    /// spec: 26.3
    #[test]
    fn long_lists_of_short_texts_lose_few_entries() {
        let ended = [vec![stray("sleep", false); 500], vec![stray("sleep 600", true); 50]].concat();
        let findings = Findings { ended, ..Findings::default() };
        let cut = bounded(&Report { findings, ..report() }).unwrap();
        assert_eq!((cut.findings.ended.len(), cut.findings.strays().count()), (100, 50));
    }
}
