//! The view of a sandbox, for people and programs: never more than was observed.
//!
//! Files are not trusted. The lock, the leaf, the marker and the socket decide between "runs" and "has ended". Facts
//! from a damaged or missing file are left out, and the damage is named.

mod derive_status;
mod members;
mod unnoticed;

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use penfold_cgroup::Limits;
use penfold_process::{ProcessId, quote_words};
use penfold_teardown::{Cause, Level};
use serde::Serialize;

use crate::resolve::{Resolver, SandboxRef};
use crate::threads::on_all_processors;
use penfold_state::evidence::LockState;
use penfold_state::intent::Intent;
use penfold_state::outcome::ExitStatus;
use penfold_state::state::{ExecState, State, Status};
use penfold_state::{Files, Life, Profile};

pub use members::{MemberView, list_members};
pub(crate) use members::{claimed_supervisors, is_between};

/// A sandbox, as observed at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SandboxView {
    /// The short id.
    pub id: String,
    /// The name.
    pub name: Option<String>,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The command; empty if unknown.
    pub command: Vec<String>,
    /// The status.
    pub status: Status,
    /// How the command ended; `None` if it has not ended, or the exit is unknown.
    pub exit: Option<ExitStatus>,
    /// Why the sandbox ended.
    pub cause: Option<Cause>,
    /// How membership is known.
    pub level: Option<Level>,
    /// What the command was put into, and each exec, too.
    pub profile: Option<Profile>,
    /// Whether the sandbox is detached.
    pub detached: bool,
    /// The owner.
    pub owner: Option<ProcessId>,
    /// The start time of the command if known, or else the time of creation; in milliseconds since 1970.
    pub started_at_ms: Option<u64>,
    /// The end of the command, in milliseconds since 1970.
    pub ended_at_ms: Option<u64>,
    /// The end of the lease, in milliseconds since 1970.
    pub expires_at_ms: Option<u64>,
    /// Whether the probe of `--ready` has succeeded; `None` without a probe.
    pub ready: Option<bool>,
    /// The time at which the next life begins, in milliseconds since 1970, if the sandbox waits for that.
    pub next_start_at_ms: Option<u64>,
    /// The id of the former life, if an older penfold has restarted the sandbox under a new id.
    pub restart_of: Option<String>,
    /// The number of restarts since the first life.
    pub restarts: u32,
    /// The leader, as the supervisor says.
    pub leader: Option<ProcessId>,
    /// The supervisor's processes, as the supervisor says.
    pub supervisors: Vec<ProcessId>,
    /// The execs that still run.
    pub execs: Vec<ExecState>,
    /// The enclosing sandboxes, outermost first.
    pub within: Vec<String>,
    /// The leaf.
    #[serde(with = "penfold_process::path_text")]
    pub leaf: Option<PathBuf>,
    /// The limits of the leaf.
    pub limits: Limits,
    /// The scratch directory.
    #[serde(with = "penfold_process::path_text")]
    pub scratch: Option<PathBuf>,
    /// The record; `None` when it is gone.
    #[serde(with = "penfold_process::path_text")]
    pub record: Option<PathBuf>,
    /// Whether the sandbox is known to belong to this state root.
    pub claimed: bool,
    /// Whether the supervisor is in another mount namespace. The state root of this path that has the record is there.
    pub elsewhere: bool,
    /// The features that the host lacks, and the consequences.
    pub missing: Vec<String>,
    /// The evidence for the status of a sandbox without a supervisor, a sentence each.
    pub evidence: Vec<String>,
    /// The damage of the record, a sentence for each fault.
    pub damage: Vec<String>,
}

impl SandboxView {
    /// Returns the command in one line.
    pub fn command_line(&self) -> String {
        quote_words(&self.command)
    }
}

/// Observes one sandbox; `None` when it is still being made, or has gone meanwhile.
pub fn observe_sandbox(resolver: &Resolver, known: &SandboxRef) -> Option<SandboxView> {
    let seen = look(resolver, known)?;
    if !known.is_being_put_away() {
        return Some(seen);
    }
    derive_status::look_a_moment_later(resolver, &[known.id.as_str()]).pop().map(|(_, seen)| seen)
}

/// Observes the sandbox once; the result may hold only for a moment.
fn look(resolver: &Resolver, known: &SandboxRef) -> Option<SandboxView> {
    let mut damage = known.damage.clone();
    let is_supervised = match &known.record {
        Some(files) => {
            let lock = files.lock();
            if let LockState::Unknown(errno) = lock {
                damage.push(format!("lock: {errno}"));
            }
            lock.may_be_held()
        }
        None => false,
    };
    let state = match &known.record {
        Some(files) => files.state().unwrap_or_else(|error| {
            damage.push(format!("state.json: {error}"));
            None
        }),
        None => None,
    };
    // The holder of an ended sandbox's lock is about to clean up: an exiting supervisor or another command. The
    // report outweighs the lock only if the record names a leaf and that leaf is gone.
    let ended = known.record.as_ref().filter(|files| files.has_ended());
    let over = ended.is_some() && known.intent.as_ref().is_some_and(|intent| intent.leaf.is_some());
    let judged = if let Some(next) = ended.filter(|_| is_supervised).and_then(Files::next_life) {
        derive_status::between_lives(known, next)
    } else if is_supervised && !over {
        derive_status::derive_attended(resolver, known, state.as_ref(), &mut damage)
    } else {
        derive_status::derive_abandoned(resolver, known, &mut damage)?
    };
    Some(assemble(known, state, judged, damage))
}

fn assemble(
    known: &SandboxRef,
    state: Option<State>,
    judged: derive_status::DerivedStatus,
    damage: Vec<String>,
) -> SandboxView {
    let intent: Option<&Intent> = known.intent.as_ref();
    let detached = intent.and_then(|intent| intent.detached.as_ref());
    let living = judged.status.is_living();
    let started = state.as_ref().map(|state| state.started_at_ms).filter(|&ms| ms > 0);
    let made = intent.map(|intent| intent.made_at_ms).filter(|&ms| ms > 0);
    let next_start = state.as_ref().and_then(|state| state.next_start_at_ms);
    let (level, leader, supervisors, execs, expires, missing) = match state {
        // The account of a dead supervisor is out of date, and a record here is not that of a supervisor elsewhere.
        Some(state) if living && judged.status != Status::Orphaned && !judged.elsewhere => {
            let State { level, leader, supervisors, execs, expires_at_ms, missing, .. } = state;
            (Some(level), leader, supervisors, execs, expires_at_ms, missing)
        }
        Some(state) => (Some(state.level), None, Vec::new(), Vec::new(), None, state.missing),
        None => (None, None, Vec::new(), Vec::new(), None, Vec::new()),
    };
    let life = detached.and_then(|detached| detached.life.as_ref());
    // The intent may be that of a life that never began.
    let number = life.and(known.record.as_ref()).map_or_else(|| life.map_or(1, Life::number), Files::life);
    SandboxView {
        id: known.id.clone(),
        name: known.name.clone(),
        labels: intent.map(|intent| intent.labels.clone()).unwrap_or_default(),
        command: intent.map(|intent| intent.command.clone()).unwrap_or_default(),
        status: judged.status,
        exit: judged.exit,
        cause: judged.cause,
        level: level.or(judged.level),
        profile: intent.and_then(|intent| intent.profile),
        detached: detached.is_some() || leader.is_some(),
        owner: detached.and_then(|detached| detached.owner),
        started_at_ms: started.or(made),
        ended_at_ms: judged.ended_at_ms,
        expires_at_ms: expires,
        ready: detached.and_then(|detached| detached.ready.as_ref()).map(|_| ready(known)),
        next_start_at_ms: next_start.filter(|_| judged.status == Status::Waiting),
        restart_of: life.map(|life| life.restart_of.clone()).filter(|id| !id.is_empty()),
        restarts: number.saturating_sub(1),
        leader,
        supervisors,
        execs,
        within: intent.map(|intent| intent.within.clone()).unwrap_or_default(),
        leaf: known.leaf.clone(),
        limits: intent.map(|intent| intent.limits).unwrap_or_default(),
        scratch: intent.and_then(|intent| intent.scratch.clone()),
        record: known.record.as_ref().map(|files| files.path().to_owned()),
        claimed: known.claimed && !judged.elsewhere,
        elsewhere: judged.elsewhere,
        missing,
        evidence: judged.evidence,
        damage,
    }
}

/// Tells whether a client has noted that the probe succeeded. A note that cannot be read counts as none.
fn ready(known: &SandboxRef) -> bool {
    known.record.as_ref().is_some_and(|files| matches!(files.ready_at(), Ok(Some(_))))
}

/// Lists the sandboxes of a state root that may have a living member, or `all` of them; the youngest last.
///
/// # Errors
/// When the records cannot be read.
pub fn list_views(root: &Path, all: bool) -> io::Result<Vec<SandboxView>> {
    Ok(select_sandboxes(&Resolver::new(root), all)?.into_iter().map(|(_, view)| view).collect())
}

/// Counts the sandboxes with a record below a state root that may have a living member.
///
/// # Errors
/// When the records cannot be read.
pub fn count_living(root: &Path) -> io::Result<usize> {
    let resolver = Resolver::new(root);
    resolver.check()?;
    let lives = |id: &str| {
        let known = resolver.by_id(id).filter(|known| known.record.is_some());
        known.and_then(|known| look(&resolver, &known)).is_some_and(|seen| seen.status.is_living())
    };
    let count = |some: &[String]| some.iter().filter(|id| lives(id)).count();
    Ok(on_all_processors(&resolver.record_names()?, count).into_iter().sum())
}

/// A sandbox with its view. Boxed: a view is large, and sorting moves each many times.
type SeenSandbox = Box<(SandboxRef, SandboxView)>;

/// A sandbox in a list.
enum ListedSandbox {
    /// The sandbox with this id has ended, and the list is one of living sandboxes.
    Over(String),
    /// The sandbox is observed.
    Seen(SeenSandbox),
}

/// Like [`list_views`], each with the traces by which it was found.
///
/// # Errors
/// When the records cannot be read, or not all processes can be: one may be the only trace of a sandbox.
pub fn select_sandboxes(resolver: &Resolver, all: bool) -> io::Result<Vec<(SandboxRef, SandboxView)>> {
    resolver.check()?;
    let (mut found, mut over) = (Vec::new(), HashSet::new());
    let look = |id: &String| look_for_list(resolver, id, all);
    let ids = resolver.ids()?;
    resolver.reserve_descriptors(ids.len());
    let looks = on_all_processors(&ids, |some| some.iter().filter_map(look).collect::<Vec<_>>());
    for listed in looks.into_iter().flatten() {
        match listed {
            ListedSandbox::Seen(seen) => found.push(seen),
            ListedSandbox::Over(id) => drop(over.insert(id)),
        }
    }
    found.extend(unnoticed::search_unnoticed(resolver, &found, &over)?);
    derive_status::look_again(resolver, &mut found);
    found.sort_by(|one, other| (one.1.started_at_ms, &one.1.id).cmp(&(other.1.started_at_ms, &other.1.id)));
    Ok(found.into_iter().map(|seen| *seen).collect())
}

/// Finds and observes one sandbox of a list; `None` when it is not in the list, or has gone meanwhile.
fn look_for_list(resolver: &Resolver, id: &str, all: bool) -> Option<ListedSandbox> {
    let known = resolver.by_id(id).filter(|known| resolver.is_in_scope(known))?;
    if !all && derive_status::is_over(resolver, &known) {
        return Some(ListedSandbox::Over(known.id));
    }
    let view = look(resolver, &known)?;
    let trace = known.record.is_none() && known.damage.is_empty();
    // A leaf without a record and a process is being made or removed, below whatever root.
    let is_listed =
        if trace && !view.status.is_living() { all && view.claimed } else { all || view.status.is_living() };
    is_listed.then(|| ListedSandbox::Seen(Box::new((known, view))))
}
