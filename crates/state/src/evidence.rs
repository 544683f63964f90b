//! What speaks for a sandbox being alive, and whether all was looked at that would tell.
//!
//! One rule for all who judge (view, control, leaks, recovery): what could not be looked at is not "nothing". These types
//! have no way from an incomplete look to "nobody".

pub mod fingerprints;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use penfold_cgroup::Leaf;
use penfold_process::{Pid, ProcFs};
use rustix::io::Errno;

use self::fingerprints::Fingerprints;

/// How many members are named as evidence.
const NAMED: usize = 3;

/// Whether a process holds a lock. A sandbox whose lock is held has a supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum LockState {
    /// A process holds it.
    Held,
    /// Nobody does.
    Free,
    /// That cannot be told, because of this: it counts as held.
    Unknown(Errno),
}

impl LockState {
    /// Whether it is certain that nobody holds it.
    pub fn is_free(self) -> bool {
        self == LockState::Free
    }

    /// Whether it is certain that somebody holds it.
    pub fn is_held(self) -> bool {
        self == LockState::Held
    }

    /// Whether somebody may hold it: unknown means alive.
    pub fn may_be_held(self) -> bool {
        self != LockState::Free
    }
}

/// What a look over the host has found, by the ids of sandboxes, and what could not be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a look that was not complete proves nothing"]
pub struct Listing<T> {
    found: HashMap<String, T>,
    unread: Option<String>,
}

impl<T> Default for Listing<T> {
    fn default() -> Listing<T> {
        Listing { found: HashMap::new(), unread: None }
    }
}

impl<T> From<HashMap<String, T>> for Listing<T> {
    /// A look that was complete.
    fn from(found: HashMap<String, T>) -> Listing<T> {
        Listing { found, unread: None }
    }
}

impl<T> Listing<T> {
    /// A look that found nothing because it could not be taken.
    pub fn blind(what: &str, error: &io::Error) -> Listing<T> {
        Listing { found: HashMap::new(), unread: Some(format!("{what} cannot be read: {error}")) }
    }

    /// Notes what could not be looked at; the first of it is told.
    pub fn note_unread(&mut self, what: impl FnOnce() -> String) {
        self.unread.get_or_insert_with(what);
    }

    /// What was found, to add to it.
    pub fn found_mut(&mut self) -> &mut HashMap<String, T> {
        &mut self.found
    }

    /// What was found. What is missing here may be there all the same: see [`Listing::excludes`].
    pub fn found(&self) -> &HashMap<String, T> {
        &self.found
    }

    /// What was found of this sandbox.
    pub fn get(&self, id: &str) -> Option<&T> {
        self.found.get(id)
    }

    /// Whether it is certain that there is nothing of this sandbox.
    pub fn excludes(&self, id: &str) -> bool {
        self.unread.is_none() && !self.found.contains_key(id)
    }

    /// What could not be looked at, a sentence.
    pub fn unread(&self) -> Option<&str> {
        self.unread.as_deref()
    }

    /// All that was found.
    ///
    /// # Errors
    /// When not all could be looked at.
    pub fn complete(self) -> io::Result<HashMap<String, T>> {
        match self.unread {
            None => Ok(self.found),
            Some(unread) => Err(io::Error::other(unread)),
        }
    }
}

/// A sandbox that is looked for.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Its id, as shown.
    pub id: &'a str,
    /// Its leaf as far as it is known.
    pub leaf: Option<&'a Path>,
    /// It has a record that can be opened.
    pub has_record: bool,
}

/// What speaks for something of a sandbox being alive, beside the lock of its record.
#[derive(Debug, Default)]
#[must_use = "an incomplete look proves nothing"]
pub struct Evidence {
    signs: Vec<String>,
    pids: Vec<Pid>,
    unread: Vec<String>,
}

impl Evidence {
    /// Looks at the members of a sandbox and, where it has no record, at the socket of its supervisor.
    pub fn of(host: &Fingerprints, subject: &Subject<'_>) -> Evidence {
        let mut evidence = Evidence::of_members(host, subject);
        // Where there is a record, its lock tells of a supervisor; anybody can listen at the path of its socket.
        if !subject.has_record {
            evidence.socket(host, subject.id);
        }
        evidence
    }

    /// Looks at the leaf of a sandbox, at one elsewhere, and at its marker if these do not tell.
    pub fn of_members(host: &Fingerprints, subject: &Subject<'_>) -> Evidence {
        let mut evidence = Evidence::default();
        let leaves = host.leaves();
        evidence.unread.extend(leaves.unread().map(str::to_owned));
        let elsewhere =
            leaves.get(subject.id).map(PathBuf::as_path).filter(|&leaf| subject.leaf != Some(leaf));
        for leaf in subject.leaf.into_iter().chain(elsewhere) {
            if let Some((true, pids)) = fingerprints::members(leaf) {
                evidence.signs.push(format!(
                    "the cgroup `{}` is populated: {}",
                    leaf.display(),
                    named(&pids)
                ));
                evidence.pids.extend(pids);
            }
        }
        if evidence.signs.is_empty() {
            evidence.marker(host, subject.id);
        }
        evidence
    }

    /// Looks whether a supervisor listens.
    pub fn socket(&mut self, host: &Fingerprints, id: &str) {
        if host.has_socket(id) {
            self.signs.push("its supervisor listens on its control socket".to_owned());
        }
        self.unread.extend(host.sockets().unread().map(str::to_owned));
    }

    fn marker(&mut self, host: &Fingerprints, id: &str) {
        let marked = host.marked();
        self.unread.extend(marked.unread().map(str::to_owned));
        let pids = marked.get(id).map(|pids| fingerprints::still_marked(pids, id)).unwrap_or_default();
        if !pids.is_empty() {
            self.signs.push(format!("its marker is in the environment of {}", named(&pids)));
            self.pids.extend(pids);
        }
    }

    /// Adds what was found out elsewhere.
    pub fn add(&mut self, sign: String) {
        self.signs.insert(0, sign);
    }

    /// Whether it is certain that nothing of it lives.
    pub fn is_nothing(&self) -> bool {
        self.signs.is_empty() && self.unread.is_empty()
    }

    /// The processes that live, as far as they have numbers here.
    pub fn pids(&self) -> &[Pid] {
        &self.pids
    }

    /// What was seen, then what could not be looked at; a sentence each.
    pub fn sentences(self) -> Vec<String> {
        self.signs.into_iter().chain(self.unread).collect()
    }
}

/// Whether nobody is in a leaf, or it is gone. Unknown means alive.
pub fn is_leaf_empty(leaf: &Path) -> bool {
    match Leaf::open(leaf) {
        Ok(None) => true,
        Ok(Some(leaf)) => leaf.populated().is_ok_and(|populated| !populated),
        Err(_) => false,
    }
}

/// A few processes, by number and name.
pub fn named(pids: &[Pid]) -> String {
    let mut proc = ProcFs::open().ok();
    let mut words: Vec<String> = pids
        .iter()
        .take(NAMED)
        .map(|&pid| {
            let stat = proc.as_mut().and_then(|proc| proc.stat(pid).ok().flatten());
            format!("{} ({})", pid.as_raw_pid(), stat.map(|stat| stat.comm).unwrap_or_default())
        })
        .collect();
    match pids.len() {
        0 => return "processes that have no number here".to_owned(),
        all if all > NAMED => words.push(format!("{} more", all - NAMED)),
        _ => {}
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 2.1
    #[test]
    fn only_what_is_certain_is_free_or_excluded() {
        let unknown = LockState::Unknown(Errno::IO);
        assert!(!unknown.is_free() && !unknown.is_held() && unknown.may_be_held());
        let blind = Listing::<()>::blind("the list", &Errno::MFILE.into());
        assert!(!blind.excludes("0123456789ab") && blind.complete().is_err());
        assert!(Listing::<()>::default().excludes("0123456789ab"));
        let mut evidence = Evidence::default();
        assert!(evidence.is_nothing());
        evidence.unread.push("the list".to_owned());
        assert!(!evidence.is_nothing());
    }
}
