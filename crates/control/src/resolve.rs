//! Finds a sandbox by its id, by a unique prefix of the id, or by its name.
//!
//! A sandbox whose record is gone is found by its leaf or its supervisor's socket. If nothing else matches, it is found
//! by its marker. A sandbox of another state root is never found.
//!
//! Text from a user is never used in a path before it was checked to be an id or a name.

mod error;
mod sandbox_ref;

use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use penfold_process::Pid;
use rustix::event::Timespec;

use penfold_state::Files;
use penfold_state::Id;
use penfold_state::error_chain;
use penfold_state::evidence::fingerprints::{self, Fingerprints, RecordHome};
use penfold_state::intent::{INTENT, Intent};
use penfold_state::names;
use penfold_state::record::{Registry, StateError};
use penfold_state::survivors::LivingSurvivor;
use penfold_state::{LeafLabel, LeafName};

use crate::scope::Scope;

pub use self::error::{Candidate, ResolveError};
pub use self::sandbox_ref::SandboxRef;

/// The most looks at a name that passes to the next life of its sandbox.
const RESTART_LOOKS: usize = 500;

/// The most looks at a sandbox whose intent is being written. On a busy host the writer may wait for a processor.
const WRITING_LOOKS: usize = 10;

/// Tells whether a sandbox was started with `--restart`.
fn has_policy(intent: Option<&Intent>) -> bool {
    intent.and_then(|intent| intent.detached.as_ref()).is_some_and(|detached| detached.restart.is_some())
}

/// Waits a moment for processes that make or remove something. They cause no event to wait for.
pub(crate) fn wait_a_moment() {
    const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 30_000_000 };
    let _ = rustix::event::poll(&mut [], Some(&MOMENT));
}

/// Finds the sandboxes of one state root. Each kind of trace is read once: make a new value to read again.
#[derive(Debug)]
pub struct Resolver {
    scope: Scope,
    registry: Result<Option<Registry>, StateError>,
    fingerprints: Fingerprints,
}

/// The facts about a sandbox for comparing it with an id or name.
struct ResolverEntry {
    candidate: Candidate,
    /// Whether the word is its name.
    is_named: bool,
    living: bool,
    /// The time of creation, in milliseconds since 1970; 0 if unknown.
    made: u64,
}

impl ResolverEntry {
    fn of(known: SandboxRef, is_named: bool, living: bool) -> ResolverEntry {
        let made = known.intent.map_or(0, |intent| intent.made_at_ms);
        ResolverEntry { candidate: Candidate { id: known.id, name: known.name }, is_named, living, made }
    }
}

impl Resolver {
    /// Makes a resolver for the records below `root`, which need not exist.
    pub fn new(root: &Path) -> Resolver {
        Resolver::within(&Scope::whole(root))
    }

    /// Makes a resolver that finds and lists the sandboxes in this scope only.
    pub fn within(scope: &Scope) -> Resolver {
        let root = scope.root();
        Resolver {
            scope: scope.clone(),
            registry: Registry::open_existing(root),
            fingerprints: Fingerprints::below(root),
        }
    }

    /// Makes a resolver for the same root that has read nothing yet.
    #[must_use]
    pub fn again(&self) -> Resolver {
        Resolver::within(&self.scope)
    }

    /// Returns the state root.
    pub fn root(&self) -> &Path {
        self.scope.root()
    }

    /// Tells whether the word is the name of this sandbox.
    fn is_named(&self, known: &SandboxRef, word: &str) -> bool {
        self.scope.means(word, known.held_name().as_deref())
    }

    /// Tells whether a sandbox is in the scope.
    pub(crate) fn is_in_scope(&self, known: &SandboxRef) -> bool {
        self.scope.is_whole() || self.scope.has_tenant(known.tenant().as_deref())
    }

    /// Returns why no records can be read, if that is so.
    pub fn blocked(&self) -> Option<&StateError> {
        self.registry.as_ref().err()
    }

    /// Returns the records, if there are any.
    pub(crate) fn registry(&self) -> Option<&Registry> {
        self.registry.as_ref().ok().and_then(Option::as_ref)
    }

    /// Finds the sandbox that `word` means: a full id (12 digits or uuid), a name, or the beginning of an id.
    ///
    /// A name means the newest sandbox with that name; living sandboxes come before ended ones.
    ///
    /// # Errors
    /// When no sandbox matches, or several do.
    pub fn resolve(&self, word: &str) -> Result<SandboxRef, ResolveError> {
        // Its leaf may be visible all the same, but only the record tells whether it has a supervisor. Root ends such a sandbox by its
        // leaf and marker.
        if let Some(error) = self.blocked().filter(|_| !rustix::process::geteuid().is_root()) {
            return Err(self.unreadable(word, error, error.kind()));
        }
        let mut known = self.find(word)?;
        // The next life of a sandbox takes the name first, and then makes its record.
        for _ in 0..RESTART_LOOKS {
            let is_passed_on = || {
                let holder = self.scope.name_holder(word).ok().flatten();
                holder.is_some_and(|holder| holder != known.id)
            };
            if !has_policy(known.intent.as_ref()) || !self.is_named(&known, word) || !is_passed_on() {
                break;
            }
            wait_a_moment();
            known = self.again().find(word)?;
        }
        // A record is made before all other traces, and is removed before the last of them.
        let is_told =
            known.record.is_some() || known.leaf.is_some() || self.fingerprints.has_socket(&known.id);
        if !is_told || !known.is_fleeting() {
            return Ok(known);
        }
        for _ in 0..WRITING_LOOKS {
            wait_a_moment();
            known = self.again().find(word)?;
            let is_held = known.record.as_ref().is_some_and(|files| files.lock().is_held());
            if !(known.lacks_intent && is_held) {
                break;
            }
        }
        Ok(known)
    }

    /// Looks once for the sandbox that `word` means.
    fn find(&self, word: &str) -> Result<SandboxRef, ResolveError> {
        let not_found = || ResolveError::NotFound { word: word.to_owned() };
        if let Some(known) = self.by_whole_id(word) {
            return Ok(known);
        }
        if !names::is_held_name(word) {
            return Err(not_found());
        }
        if let Some(known) = self.by_held_name(word) {
            return Ok(known);
        }
        let entries = self.entries(word).map_err(|error| self.unreadable(word, &error, error.kind()))?;
        let newest = entries
            .iter()
            .filter(|entry| entry.is_named)
            .max_by_key(|entry| (entry.living, entry.made, &entry.candidate.id));
        let begins = |entry: &&ResolverEntry| is_prefix(word, &entry.candidate.id);
        let mut found: Vec<Candidate> = match newest {
            Some(entry) => vec![entry.candidate.clone()],
            None => entries.iter().filter(begins).map(|entry| entry.candidate.clone()).collect(),
        };
        if found.is_empty() {
            found = self.marked_with(word);
        }
        if found.is_empty() {
            found.extend(self.closed_with_name(word));
        }
        found.sort_unstable_by(|one, other| one.id.cmp(&other.id));
        match found.as_slice() {
            [] => {
                let unreadable = |error: &StateError| self.unreadable(word, error, error.kind());
                Err(self.blocked().map_or_else(not_found, unreadable))
            }
            [one] => self.by_id(&one.id).or_else(|| self.by_marker(&one.id)).ok_or_else(not_found),
            _ => Err(ResolveError::Ambiguous { word: word.to_owned(), candidates: found }),
        }
    }

    /// Finds all ended sandboxes with this name, the newest first.
    ///
    /// # Errors
    /// When the records cannot be read.
    pub fn ended_with_name(&self, name: &str) -> io::Result<Vec<SandboxRef>> {
        let mut found: Vec<SandboxRef> = self
            .record_names()?
            .iter()
            .filter_map(|id| self.by_id(id))
            .filter(|known| self.is_in_scope(known) && self.is_named(known, name))
            .filter(|known| known.record.as_ref().is_some_and(|files| !may_live(files)))
            .collect();
        found.sort_by_key(|known| {
            std::cmp::Reverse(known.intent.as_ref().map_or(0, |intent| intent.made_at_ms))
        });
        Ok(found)
    }

    /// Finds all sandboxes with a record or a trace other than a marker, in no order.
    ///
    /// # Errors
    /// When the records cannot be read.
    pub fn all(&self) -> io::Result<Vec<SandboxRef>> {
        self.check()?;
        Ok(self
            .ids()?
            .iter()
            .filter_map(|id| self.by_id(id))
            .filter(|known| self.is_in_scope(known))
            .collect())
    }

    /// # Errors
    /// When the records cannot be read.
    pub(crate) fn check(&self) -> io::Result<()> {
        self.blocked().map_or(Ok(()), |error| Err(io::Error::other(error_chain(error))))
    }

    /// Returns the ids of all sandboxes with a record or a trace other than a marker, in no order.
    ///
    /// # Errors
    /// When the records cannot be read.
    pub(crate) fn ids(&self) -> io::Result<Vec<String>> {
        // A record is made before its leaf, so a new sandbox appears in one of the two listings.
        let traces = self.traces();
        let mut ids = self.record_names()?;
        let recorded: HashSet<&str> = ids.iter().map(String::as_str).collect();
        // A record that existed a moment ago is already counted.
        let is_new = |id: &String| !recorded.contains(id.as_str()) && self.is_unrecorded(id);
        let unrecorded: Vec<String> = traces.into_iter().filter(is_new).collect();
        ids.extend(unrecorded);
        Ok(ids)
    }

    /// Prepares for descriptors of so many records, before threads open them.
    pub(crate) fn reserve_descriptors(&self, count: usize) {
        if let Some(registry) = self.registry() {
            penfold_sys::descriptors::reserve(registry.as_fd(), count);
        }
    }

    fn unreadable(&self, word: &str, error: &dyn std::error::Error, kind: io::ErrorKind) -> ResolveError {
        let why = format!("{} (below `{}`)", error_chain(error), self.root().display());
        ResolveError::Unreadable { word: word.to_owned(), why, kind }
    }

    /// Returns the ids of all records.
    ///
    /// # Errors
    /// When the records cannot be read.
    pub(crate) fn record_names(&self) -> io::Result<Vec<String>> {
        self.registry().map_or_else(|| Ok(Vec::new()), Registry::names)
    }

    /// Tells whether there is no record of this id, not even an unreadable one.
    pub(crate) fn is_unrecorded(&self, id: &str) -> bool {
        !self.registry().is_some_and(|registry| registry.holds(id))
    }

    /// Finds the sandbox with this full id (12 digits or uuid), by all its traces.
    fn by_whole_id(&self, word: &str) -> Option<SandboxRef> {
        let whole = Id::from_whole(word);
        let short = whole.map_or_else(|| word.to_owned(), |id| id.short());
        let found =
            if Id::is_short(&short) { self.by_id(&short).or_else(|| self.by_marker(&short)) } else { None };
        // Without an intent, only the short id is known.
        let is_it = |known: &SandboxRef| {
            known.intent.as_ref().is_none_or(|intent| whole.is_none_or(|whole| whole == intent.id))
        };
        found.filter(is_it).filter(|known| self.is_in_scope(known))
    }

    /// Finds the sandbox with this id, by its record, its leaf or its supervisor's socket.
    pub(crate) fn by_id(&self, id: &str) -> Option<SandboxRef> {
        let mut damage = Vec::new();
        let mut record = match self.registry().map(|registry| registry.look(id)) {
            Some(Ok(files)) => files,
            Some(Err(error)) => {
                damage.push(error_chain(&error));
                None
            }
            None => None,
        };
        let mut lacks_intent = false;
        let mut intent = record.as_ref().map(own_intent).transpose().unwrap_or_else(|error| {
            lacks_intent = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof);
            damage.push(missing_or(INTENT, &error));
            None
        });
        if intent.is_none() && record.as_ref().is_some_and(is_bare) {
            (record, lacks_intent) = (None, false);
            damage.clear();
        }
        let known = record.is_some() || !damage.is_empty();
        let leaf = match &intent {
            Some(intent) => self.leaf_of(id, intent),
            None => self.fingerprints.leaves().get(id).cloned(),
        };
        let mut claimed = true;
        if intent.is_none() {
            let label = leaf.as_ref().map(|leaf| LeafLabel::read(leaf, id)).unwrap_or_default();
            // The state root remembers the survivors of its own sandboxes.
            let is_remembered = !known && self.fingerprints.survivors().get(id).is_some();
            let home = if known || is_remembered {
                RecordHome::Here
            } else {
                self.home(id, leaf.as_deref(), &label, &[])
            };
            let is_found = known || is_remembered || leaf.is_some() || self.fingerprints.has_socket(id);
            if home == RecordHome::Elsewhere || !is_found {
                return None;
            }
            claimed = home == RecordHome::Here;
            intent = label.intent;
        }
        let name = intent.as_ref().and_then(Intent::held_name).map(|held| self.scope.shown_name(&held));
        // A life that begins gets its launch file after its record.
        let is_newest = |files: &Files| files.has_launch() || !files.has_ended();
        let restarts = has_policy(intent.as_ref()) && record.as_ref().is_some_and(is_newest);
        Some(SandboxRef {
            id: id.to_owned(),
            name,
            record,
            leaf,
            claimed,
            intent,
            damage,
            restarts,
            lacks_intent,
        })
    }

    /// Returns the leaf that the record names, if the record can be trusted.
    fn leaf_of(&self, id: &str, intent: &Intent) -> Option<PathBuf> {
        let usual = |path: &PathBuf| LeafName::id_at(path).as_deref() == Some(id);
        match &intent.leaf {
            Some(leaf) if usual(leaf) => Some(leaf.clone()),
            Some(_) => self.fingerprints.leaves().get(id).cloned(),
            None => None,
        }
    }

    pub(crate) fn by_marker(&self, id: &str) -> Option<SandboxRef> {
        self.left_in(id, self.fingerprints.marked().get(id)?)
    }

    /// Returns the sandbox of which only these processes with its marker are left.
    pub(crate) fn left_in(&self, id: &str, pids: &[Pid]) -> Option<SandboxRef> {
        // A sandbox with a leaf or a socket that was not found by it belongs to another state root.
        if self.fingerprints.leaves().get(id).is_some() || self.fingerprints.sockets().get(id).is_some() {
            return None;
        }
        let home = self.home(id, None, &LeafLabel::default(), pids);
        (home != RecordHome::Elsewhere).then(|| SandboxRef {
            id: id.to_owned(),
            name: None,
            record: None,
            leaf: None,
            claimed: home == RecordHome::Here,
            intent: None,
            damage: Vec::new(),
            restarts: false,
            lacks_intent: false,
        })
    }

    fn marked_with(&self, word: &str) -> Vec<Candidate> {
        if !is_prefix_like(word) {
            return Vec::new();
        }
        let ids = self.fingerprints.marked().found().keys().filter(|id| is_prefix(word, id));
        let marked = ids.filter_map(|id| self.by_marker(id)).filter(|known| self.is_in_scope(known));
        marked.map(|known| Candidate { id: known.id, name: None }).collect()
    }

    /// Finds the living sandbox with this name by its lock, quickly. The record of the holder must not contradict the
    /// name.
    fn by_held_name(&self, word: &str) -> Option<SandboxRef> {
        let id = self.scope.name_holder(word).ok()??;
        let known = self.by_id(&id)?;
        let contradicts = known.intent.is_some() && !self.is_named(&known, word);
        if contradicts || !self.is_in_scope(&known) {
            return None;
        }
        let name = known.name.clone().or_else(|| Some(word.to_owned()));
        Some(SandboxRef { name, ..known })
    }

    /// Returns the last holder of a name, if its record cannot be opened to check.
    fn closed_with_name(&self, word: &str) -> Option<Candidate> {
        let id = self.scope.last_holder(word).ok()??;
        let known = self.by_id(&id).filter(|known| known.is_closed() && self.is_in_scope(known))?;
        Some(Candidate { id: known.id, name: Some(word.to_owned()) })
    }

    /// Restores the owner's access to closed records of these sandboxes, whose end the owner requests.
    pub(crate) fn opened(&self, targets: &[SandboxRef]) -> Vec<SandboxRef> {
        let fresh = self.again();
        let open = |known: &SandboxRef| {
            let registry = fresh.registry().filter(|_| known.is_closed())?;
            registry.open_to_owner(&known.id).ok()?;
            fresh.by_id(&known.id)
        };
        targets.iter().map(|known| open(known).unwrap_or_else(|| known.clone())).collect()
    }

    /// Lists all sandboxes, including those without a record; `living` is filled in for those with the name `word`.
    fn entries(&self, word: &str) -> io::Result<Vec<ResolverEntry>> {
        let entry = |id: &String| {
            let known = self.by_id(id).filter(|known| self.is_in_scope(known))?;
            let is_named = self.is_named(&known, word);
            let living = is_named && known.record.as_ref().is_none_or(may_live);
            Some(ResolverEntry::of(known, is_named, living))
        };
        Ok(self.ids()?.iter().filter_map(entry).collect())
    }

    /// Returns the ids of all leaves, and of the sockets and survivors below this state root.
    fn traces(&self) -> Vec<String> {
        if self.registry().is_some_and(Registry::is_crowded) {
            // Each of the two takes long beside many sandboxes.
            std::thread::scope(|scope| {
                let _ = std::thread::Builder::new().spawn_scoped(scope, || self.fingerprints.leaves());
                self.fingerprints.sockets();
            });
        }
        let sockets =
            self.fingerprints.sockets().found().keys().filter(|id| self.fingerprints.has_socket(id));
        let survivors = self.fingerprints.survivors().found().keys();
        let mut ids: Vec<String> =
            self.fingerprints.leaves().found().keys().chain(sockets).chain(survivors).cloned().collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Returns the state root of a sandbox that has no record here.
    pub fn home(&self, id: &str, leaf: Option<&Path>, label: &LeafLabel, marked: &[Pid]) -> RecordHome {
        let members = || leaf.and_then(fingerprints::leaf_members).map(|(_, pids)| pids).unwrap_or_default();
        let held = || members().iter().chain(marked).find_map(|&pid| fingerprints::held_below(pid, id));
        let spared = || fingerprints::spared_below(marked, id);
        let root = self.fingerprints.sockets().get(id).cloned().or_else(|| label.root.clone());
        let root = root.or_else(held).or_else(spared);
        match root {
            Some(root) if fingerprints::is_same_root(&root, self.root()) => RecordHome::Here,
            Some(_) => RecordHome::Elsewhere,
            None => RecordHome::Unknown,
        }
    }

    /// Returns the members of a sandbox that could not be ended before, and live.
    pub fn survivors(&self, id: &str) -> &[LivingSurvivor] {
        self.fingerprints.survivors().get(id).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the traces of sandboxes besides their records.
    pub fn fingerprints(&self) -> &Fingerprints {
        &self.fingerprints
    }
}

/// Returns the intent, if the record describes its own sandbox.
pub(crate) fn own_intent(files: &Files) -> io::Result<Intent> {
    let intent = files.intent()?;
    if intent.id.short() == files.name() {
        Ok(intent)
    } else {
        Err(io::Error::other(format!("it speaks of another sandbox, {}", intent.id)))
    }
}

/// Describes the fault of a file that a record must have.
pub(crate) fn missing_or(file: &str, error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::NotFound {
        format!("{file}: it is missing")
    } else {
        format!("{file}: {error}")
    }
}

/// Tells whether a record is empty: it is being made or removed.
fn is_bare(files: &Files) -> bool {
    penfold_state::clear::list_entries(files.dir()).is_ok_and(|entries| entries.is_empty())
}

/// Tells whether a sandbox may not have ended.
fn may_live(files: &Files) -> bool {
    files.lock().may_be_held() || !files.has_ended()
}

fn is_prefix_like(word: &str) -> bool {
    (1..=12).contains(&word.len()) && word.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_prefix(word: &str, id: &str) -> bool {
    is_prefix_like(word) && id.starts_with(word)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use penfold_state::evidence::Listing;

    use super::*;

    /// A state root, and a resolver that read it when a sandbox had a leaf and its record was not seen.
    fn looked(id: &str) -> (tempfile::TempDir, Resolver) {
        let base = tempfile::tempdir().unwrap();
        let leaf = base.path().join(LeafName::of(id));
        let early = Resolver {
            scope: Scope::whole(&base.path().join("root")),
            registry: Ok(None),
            fingerprints: Fingerprints::looked_at(
                &base.path().join("root"),
                Listing::from(HashMap::from([(id.to_owned(), leaf)])),
                Listing::default(),
                Listing::default(),
            ),
        };
        (base, early)
    }

    /// spec: 5.6
    #[test]
    fn one_that_gets_its_record_while_it_is_looked_for_is_found_with_it() {
        let id = Id::new().unwrap();
        let (_base, early) = looked(&id.short());
        let registry = Registry::open(early.root()).unwrap();
        let intent = serde_json::json!({
            "schema": penfold_state::record::SCHEMA, "id": id, "name": "web", "labels": {}, "command": ["true"], "boot": "",
            "leaf": null, "scratch": null, "made_at_ms": 1
        });
        let _record = registry.reserve(&serde_json::from_value(intent).unwrap()).unwrap();
        let _name = names::take_name(early.root(), "web", &id).unwrap();
        assert!(early.find(&id.short()).unwrap().record.is_none());
        for word in [id.short().as_str(), "web"] {
            assert!(early.resolve(word).unwrap().record.is_some(), "{word}");
        }
    }

    /// spec: 5.6
    #[test]
    fn one_that_goes_while_it_is_looked_for_is_none() {
        let id = Id::new().unwrap().short();
        let (_base, early) = looked(&id);
        assert!(early.find(&id).is_ok());
        assert!(matches!(early.resolve(&id), Err(ResolveError::NotFound { .. })));
    }
}
