//! Evidence that a sandbox is alive, and whether everything was read that could show it.
//!
//! One rule holds for all users of this module (view, control, leaks, recovery): something that could not be read is
//! not "nothing". These types cannot report an incomplete search as an empty result.

pub mod elsewhere;
pub mod fingerprints;
mod record_holders;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use penfold_cgroup::Leaf;
use penfold_process::{Pid, ProcFs};
use rustix::io::Errno;

use self::fingerprints::Fingerprints;
pub use self::record_holders::is_held_anywhere;
use crate::survivors::{self, LivingSurvivor};

/// The most members that are named as evidence.
const NAMED: usize = 3;
/// What is known of survivors that could not be written down. If their supervisor was killed, nothing leads to them before the next boot.
pub(crate) const UNWRITTEN_SURVIVORS: &str = "members could not be ended, and it is not written down which";

/// Whether a process holds a lock. A sandbox whose lock is held has a supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum LockState {
    /// A process holds the lock.
    Held,
    /// No process holds the lock.
    Free,
    /// The state is unknown because of this error: the lock counts as held.
    Unknown(Errno),
}

impl LockState {
    /// Tells whether it is certain that no process holds the lock.
    pub fn is_free(self) -> bool {
        self == LockState::Free
    }

    /// Tells whether it is certain that a process holds the lock.
    pub fn is_held(self) -> bool {
        self == LockState::Held
    }

    /// Tells whether a process may hold the lock: unknown means alive.
    pub fn may_be_held(self) -> bool {
        self != LockState::Free
    }
}

/// The result of a look over the host by sandbox id, and the part that could not be read.
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
    /// Makes a complete listing.
    fn from(found: HashMap<String, T>) -> Listing<T> {
        Listing { found, unread: None }
    }
}

impl<T> Listing<T> {
    /// Makes a listing of a look that failed altogether.
    pub fn blind(what: &str, error: &io::Error) -> Listing<T> {
        Listing { found: HashMap::new(), unread: Some(format!("{what} cannot be read: {error}")) }
    }

    /// Notes a part that could not be read; only the first note is kept.
    pub fn note_unread(&mut self, what: impl FnOnce() -> String) {
        self.unread.get_or_insert_with(what);
    }

    /// Returns the result, to add to it.
    pub fn found_mut(&mut self) -> &mut HashMap<String, T> {
        &mut self.found
    }

    /// Returns the result. An id that is missing here may exist all the same: see [`Listing::excludes`].
    pub fn found(&self) -> &HashMap<String, T> {
        &self.found
    }

    /// Returns the result for this sandbox.
    pub fn get(&self, id: &str) -> Option<&T> {
        self.found.get(id)
    }

    /// Tells whether it is certain that the host has nothing of this sandbox.
    pub fn excludes(&self, id: &str) -> bool {
        self.unread.is_none() && !self.found.contains_key(id)
    }

    /// Returns the part that could not be read, as a sentence.
    pub fn unread(&self) -> Option<&str> {
        self.unread.as_deref()
    }

    /// Returns the whole result.
    ///
    /// # Errors
    /// When something could not be read.
    pub fn complete(self) -> io::Result<HashMap<String, T>> {
        match self.unread {
            None => Ok(self.found),
            Some(unread) => Err(io::Error::other(unread)),
        }
    }
}

/// The sandbox for which evidence is searched.
#[derive(Debug, Clone, Copy)]
pub struct EvidenceSubject<'a> {
    /// The short id.
    pub id: &'a str,
    /// The leaf, if known.
    pub leaf: Option<&'a Path>,
    /// Whether the sandbox has a record that can be opened.
    pub has_record: bool,
    /// Whether the record says that there are survivors, and not which.
    pub has_unwritten_survivors: bool,
}

/// Evidence that something of a sandbox is alive, besides the lock of its record.
#[derive(Debug, Default)]
#[must_use = "an incomplete look proves nothing"]
pub struct Evidence {
    signs: Vec<String>,
    pids: Vec<Pid>,
    unread: Vec<String>,
}

impl Evidence {
    /// Looks for members of a sandbox and, if it has no record, for the socket of its supervisor.
    pub fn of(host: &Fingerprints, subject: &EvidenceSubject<'_>) -> Evidence {
        let mut evidence = Evidence::of_members(host, subject);
        // With a record, the lock shows whether a supervisor lives. Any process can listen at the path of its socket.
        if !subject.has_record {
            evidence.socket(host, subject.id);
        }
        evidence
    }

    /// Looks at the leaf of a sandbox, at a leaf elsewhere, and at its marker if the leaves show nothing.
    pub fn of_members(host: &Fingerprints, subject: &EvidenceSubject<'_>) -> Evidence {
        let mut evidence = Evidence::default();
        let leaves = host.leaves();
        evidence.unread.extend(leaves.unread().map(str::to_owned));
        let elsewhere =
            leaves.get(subject.id).map(PathBuf::as_path).filter(|&leaf| subject.leaf != Some(leaf));
        for leaf in subject.leaf.into_iter().chain(elsewhere) {
            if let Some((true, pids)) = fingerprints::leaf_members(leaf) {
                evidence.signs.push(format!(
                    "the cgroup `{}` is populated: {}",
                    leaf.display(),
                    name_processes(&pids)
                ));
                evidence.pids.extend(pids);
            }
        }
        if evidence.signs.is_empty() {
            evidence.marker(host, subject.id);
        }
        evidence.survivors(host, subject.id);
        if subject.has_unwritten_survivors {
            evidence.unread.push(UNWRITTEN_SURVIVORS.to_owned());
        }
        evidence
    }

    /// Looks for members that could not be ended before. Nothing else may lead to them.
    fn survivors(&mut self, host: &Fingerprints, id: &str) {
        let survivors = host.survivors();
        self.unread.extend(survivors.unread().map(str::to_owned));
        let survivors = survivors.get(id).map(Vec::as_slice).unwrap_or_default();
        self.signs.extend(survivors::describe_survivors(survivors));
        self.pids.extend(survivors.iter().map(LivingSurvivor::pid));
    }

    /// Looks for a supervisor that listens.
    pub fn socket(&mut self, host: &Fingerprints, id: &str) {
        if host.has_socket(id) {
            self.signs.push("its supervisor listens on its control socket".to_owned());
        }
        self.unread.extend(host.sockets().unread().map(str::to_owned));
    }

    fn marker(&mut self, host: &Fingerprints, id: &str) {
        let marked = host.marked();
        self.unread.extend(marked.unread().map(str::to_owned));
        let pids = marked.get(id).map(|pids| host.still_marked(pids, id)).unwrap_or_default();
        if !pids.is_empty() {
            self.signs.push(format!("its marker is in the environment of {}", name_processes(&pids)));
            self.pids.extend(pids);
        }
    }

    /// Adds evidence that was found elsewhere.
    pub fn add(&mut self, sign: String) {
        self.signs.insert(0, sign);
    }

    /// Tells whether it is certain that nothing of the sandbox lives.
    pub fn is_nothing(&self) -> bool {
        self.signs.is_empty() && self.unread.is_empty()
    }

    /// Returns the living processes, as far as they have pids here.
    pub fn pids(&self) -> &[Pid] {
        &self.pids
    }

    /// Returns the evidence found, then the parts that could not be read; a sentence each.
    pub fn sentences(self) -> Vec<String> {
        self.signs.into_iter().chain(self.unread).collect()
    }
}

/// Tells whether a leaf has no member or is gone. Unknown means alive.
pub fn is_leaf_empty(leaf: &Path) -> bool {
    match Leaf::open(leaf) {
        Ok(None) => true,
        Ok(Some(leaf)) => leaf.populated().is_ok_and(|populated| !populated),
        Err(_) => false,
    }
}

/// Names a few processes by pid and name.
pub fn name_processes(pids: &[Pid]) -> String {
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
