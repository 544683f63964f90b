//! The proofs of membership besides the marker, for a sandbox whose supervisors are lost.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use penfold_process::ProcFs;
use penfold_teardown::{Findings, Marker, Search, Selector, Survivor};

use crate::files::Files;
use crate::intent::Intent;
use crate::spared;
use crate::survivors::{self, LivingSurvivor};

/// Collects the facts that prove a carrier of this sandbox's marker to be a member.
///
/// The marker alone is proof in two cases:
/// - `named`: a user has named the sandbox
/// - the record is of an older penfold, which did not record these facts
///
/// Below the state root `root` are the notes of processes that were spared, which are no members.
pub fn build_marker(
    id: &str,
    intent: Option<&Intent>,
    files: Option<&Files>,
    named: bool,
    root: Option<&Path>,
) -> Marker {
    let user = files.and_then(|files| std::fs::metadata(files.path()).ok()).map(|meta| meta.uid());
    let is_bare =
        |intent: &Intent| intent.since.is_none() && intent.session.is_none() && intent.home.is_none();
    let older = intent.is_some_and(is_bare);
    let leads = || files?.state().ok()??.leader.map(|leader| leader.pid.as_raw_pid());
    Marker {
        sandbox: id.to_owned(),
        user,
        since: intent.and_then(|intent| intent.since),
        session: intent.and_then(|intent| intent.session).or_else(leads),
        home: intent.and_then(|intent| intent.home.clone()),
        ancestors: intent.map(|intent| intent.ancestors.clone()).unwrap_or_default(),
        suffices: named || older,
        spared: root.map(spared::spared_marks).unwrap_or_default(),
    }
}

/// Makes a search for the members and takes one look. A process that is a member only through another member must be
/// known before that one dies. The survivors that are remembered below the state root `root` are members, whatever they have become.
///
/// # Errors
/// When /proc cannot be read.
pub fn search_members(marker: &Marker, root: Option<&Path>, proc: &mut ProcFs) -> io::Result<Search> {
    let mut search = Search::new(Selector::Marker(marker.clone()), proc)?;
    // If they cannot be read, the evidence says so: that is no reason not to end the others.
    let remembered = root.and_then(|root| survivors::living_survivors(root, &marker.sandbox).ok());
    for alive in remembered.into_iter().flatten() {
        match alive {
            LivingSurvivor::Seen(stat) => search.add_member(stat.id()),
            LivingSurvivor::Hidden(pid, pidfd) => search.add_hidden(pid, pidfd),
        }
    }
    let _ = search.find(proc, &mut Vec::new())?;
    Ok(search)
}

/// Adds to the findings the processes that carry the marker without another proof of membership.
///
/// # Errors
/// When /proc cannot be read.
pub fn name_copies(marker: &Marker, findings: &mut Findings) -> io::Result<()> {
    let mut proc = ProcFs::open()?;
    let mut search = Search::new(Selector::Marker(marker.clone()), &mut proc)?;
    let _ = search.find(&mut proc, &mut Vec::new())?;
    for &pid in search.unproven() {
        let Some(stat) = proc.stat(pid)?.filter(|stat| !stat.is_dead()) else { continue };
        findings.verified = false;
        findings.survivors.push(Survivor::Process {
            pid: pid.as_raw_pid(),
            start_time: stat.start.0,
            name: stat.comm,
            state: stat.state.letter(),
            wait_channel: None,
            reason: format!(
                "has the marker of the sandbox and nothing else of it, perhaps a copy; `penfold kill {}` ends it",
                marker.sandbox
            ),
        });
    }
    Ok(())
}
