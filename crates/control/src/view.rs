//! What is to be seen of a sandbox, for people and programs: never more than what was looked at.
//!
//! Files are read without belief. What decides between "runs" and "is over" is the lock, the leaf, the marker and the
//! socket; what a damaged or missing file would have said is left out, and the damage is named.

mod derive_status;
mod members;
mod unnoticed;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use penfold_process::ProcessId;
use penfold_teardown::{Cause, Level};
use serde::Serialize;

use crate::resolve::{Finder, Known};
use penfold_state::evidence::LockState;
use penfold_state::outcome::Status;
use penfold_state::record::Intent;
use penfold_state::state::{Exec, State, Word};

pub use members::{Member, members};

/// One sandbox, as it was seen at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct View {
    /// Its id, as shown.
    pub id: String,
    /// Its name.
    pub name: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its command; empty when that is not known.
    pub command: Vec<String>,
    /// In which state it is.
    #[serde(rename = "status")]
    pub word: Word,
    /// How its command ended; nothing when it has not, or that is not known.
    pub exit: Option<Status>,
    /// Why it ended.
    pub cause: Option<Cause>,
    /// How membership is known.
    pub level: Option<Level>,
    /// Whether it goes on without who started it.
    pub detached: bool,
    /// Who started it.
    pub owner: Option<ProcessId>,
    /// When it was made or, where that is known, its command began; in milliseconds since 1970.
    pub started_at_ms: Option<u64>,
    /// When its command ended, in milliseconds since 1970.
    pub ended_at_ms: Option<u64>,
    /// When its lease ends, in milliseconds since 1970.
    pub expires_at_ms: Option<u64>,
    /// The first process of it, as its supervisor says.
    pub leader: Option<ProcessId>,
    /// The processes that look after it, as its supervisor says.
    pub supervisors: Vec<ProcessId>,
    /// Commands that were put into it and run still.
    pub execs: Vec<Exec>,
    /// The sandboxes that it is in, from the outermost.
    pub within: Vec<String>,
    /// Its leaf.
    pub leaf: Option<PathBuf>,
    /// Its scratch directory.
    pub scratch: Option<PathBuf>,
    /// Its record; none when that is gone.
    pub record: Option<PathBuf>,
    /// Whether it is known to belong to this state root.
    pub claimed: bool,
    /// What the host did not give, and what follows.
    pub missing: Vec<String>,
    /// What speaks for its state when nobody looks after it, a sentence each.
    pub evidence: Vec<String>,
    /// What is wrong with its record, a sentence each.
    pub damage: Vec<String>,
}

impl View {
    /// Its command in one line.
    pub fn command_line(&self) -> String {
        self.command.join(" ")
    }
}

/// Looks at one sandbox. Nothing when it turns out to be none: it is just being made, or went meanwhile.
pub fn view(finder: &Finder, known: &Known) -> Option<View> {
    let seen = look(finder, known)?;
    if !known.is_being_put_away() {
        return Some(seen);
    }
    derive_status::look_a_moment_later(finder, &[known.id.as_str()]).pop().map(|(_, seen)| seen)
}

/// One look at it, which may be at what is gone in a moment.
fn look(finder: &Finder, known: &Known) -> Option<View> {
    let mut damage = known.damage.clone();
    let looked_after = match &known.record {
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
    // Whoever holds the lock of one that has ended is about to put it away, be it a supervisor on its way out or another
    // command. Where a leaf tells, the report is not believed alone.
    let over = known.record.as_ref().is_some_and(|files| {
        known.intent.as_ref().is_some_and(|intent| intent.leaf.is_some()) && files.has_ended()
    });
    let judged = if looked_after && !over {
        derive_status::looked_after(finder, known, state.as_ref(), &mut damage)
    } else {
        derive_status::abandoned(finder, known, &mut damage)?
    };
    Some(assemble(known, state, judged, damage))
}

fn assemble(known: &Known, state: Option<State>, judged: derive_status::Judged, damage: Vec<String>) -> View {
    let intent: Option<&Intent> = known.intent.as_ref();
    let detached = intent.and_then(|intent| intent.detached.as_ref());
    let living = judged.word.is_living();
    let started = state.as_ref().map(|state| state.started_at_ms).filter(|&ms| ms > 0);
    let made = intent.map(|intent| intent.made_at_ms).filter(|&ms| ms > 0);
    let (level, leader, supervisors, execs, expires, missing) = match state {
        // What a dead supervisor said of processes is no more true.
        Some(state) if living && judged.word != Word::Orphaned => {
            let State { level, leader, supervisors, execs, expires_at_ms, missing, .. } = state;
            (Some(level), leader, supervisors, execs, expires_at_ms, missing)
        }
        Some(state) => (Some(state.level), None, Vec::new(), Vec::new(), None, state.missing),
        None => (None, None, Vec::new(), Vec::new(), None, Vec::new()),
    };
    View {
        id: known.id.clone(),
        name: known.name.clone(),
        labels: intent.map(|intent| intent.labels.clone()).unwrap_or_default(),
        command: intent.map(|intent| intent.command.clone()).unwrap_or_default(),
        word: judged.word,
        exit: judged.exit,
        cause: judged.cause,
        level: level.or(judged.level),
        detached: detached.is_some() || leader.is_some(),
        owner: detached.and_then(|detached| detached.owner),
        started_at_ms: started.or(made),
        ended_at_ms: judged.ended_at_ms,
        expires_at_ms: expires,
        leader,
        supervisors,
        execs,
        within: intent.map(|intent| intent.within.clone()).unwrap_or_default(),
        leaf: known.leaf.clone(),
        scratch: intent.and_then(|intent| intent.scratch.clone()),
        record: known.record.as_ref().map(|files| files.path().to_owned()),
        claimed: known.claimed,
        missing,
        evidence: judged.evidence,
        damage,
    }
}

/// Looks at the sandboxes of a state root that may have something alive in them, or at `all` of them; the youngest last.
///
/// # Errors
/// When the records cannot be read.
pub fn list(root: &Path, all: bool) -> io::Result<Vec<View>> {
    Ok(select(&Finder::new(root), all)?.into_iter().map(|(_, view)| view).collect())
}

/// As [`list`], each with what it was found by.
///
/// # Errors
/// When the records cannot be read, or not all processes can be looked at: one may be all that is left of a sandbox.
pub fn select(finder: &Finder, all: bool) -> io::Result<Vec<(Known, View)>> {
    let (over, others): (Vec<Known>, Vec<Known>) =
        finder.all()?.into_iter().partition(|known| !all && derive_status::is_over(finder, known));
    let mut found: Vec<(Known, View)> = others
        .into_iter()
        .filter_map(|known| look(finder, &known).map(|seen| (known, seen)))
        .filter(|(known, view)| {
            let trace = known.record.is_none() && known.damage.is_empty();
            // A leaf without a record and a process is just being made or removed, below whatever root.
            if trace && !view.word.is_living() { all && view.claimed } else { all || view.word.is_living() }
        })
        .collect();
    found.extend(unnoticed::search(finder, &found, &over)?);
    derive_status::look_again(finder, &mut found);
    found.sort_by(|(_, one), (_, other)| (one.started_at_ms, &one.id).cmp(&(other.started_at_ms, &other.id)));
    Ok(found)
}
