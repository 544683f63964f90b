//! What a collection of leaks may remove, which leaks a word names, and the event of a removal.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use penfold_state::Id;
use penfold_state::events::{EventKind, EventSubject, Journal};

use super::words::describe_leak;
use super::{Leak, Thing};

/// The age from which leaks that are not certain are removed, unless chosen otherwise.
pub const USUAL_AGE: Duration = Duration::from_mins(10);

/// The rules of a collection.
#[derive(Debug, Clone, Copy)]
pub struct GcRules {
    /// Leaks that are not certain, and records of ended sandboxes, are kept while they are younger.
    pub older_than: Duration,
    /// Whether a person has named the sandboxes.
    pub is_named: bool,
    /// Whether the search could read everything that matters.
    pub is_complete: bool,
}

/// Why a leak is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepReason {
    /// Its supervisor lives, and ends it on request.
    Supervised,
    /// It may belong to another state root, and no person has named it.
    OtherRoot,
    /// Not everything could be read, so it may be alive.
    Unread,
    /// It is younger than [`GcRules::older_than`].
    Young,
}

impl GcRules {
    /// Returns the reason to keep a leak; `None` if it may be removed.
    pub fn keep_reason(&self, leak: &Leak) -> Option<KeepReason> {
        if leak.is_alive() {
            return Some(KeepReason::Supervised);
        }
        if leak.is_certain() {
            return None;
        }
        if !leak.claimed && !self.is_named {
            return Some(KeepReason::OtherRoot);
        }
        if !self.is_complete {
            return Some(KeepReason::Unread);
        }
        (leak.age() < self.older_than).then_some(KeepReason::Young)
    }
}

/// Returns the sandbox whose leaks a word names: by its whole id, or by its name. Of several with that name, those that are leaks
/// precede the records of ended sandboxes, and the newest is meant.
pub fn named_sandbox<'l>(leaks: &'l [Leak], word: &str) -> Option<&'l str> {
    let id = Id::from_whole(word).map_or_else(|| word.to_owned(), |id| id.short());
    let by_id = leaks.iter().find(|leak| !leak.id.is_empty() && leak.id == id);
    let named = leaks.iter().filter(|leak| leak.name.as_deref() == Some(word));
    let by_name = || named.min_by_key(|leak| (matches!(leak.thing, Thing::Ended { .. }), leak.age()));
    by_id.or_else(by_name).map(|leak| leak.id.as_str())
}

/// Writes the event of a removal, or of one that failed. A kept record of an ended sandbox is no leak and gets no event.
pub fn publish_removal(leak: &Leak, state_root: &Path, outcome: &str, reason: Option<String>) {
    if matches!(leak.thing, Thing::Ended { .. }) {
        return;
    }
    let what = EventKind::Leak { what: describe_leak(leak), outcome: outcome.to_owned(), reason };
    let about =
        EventSubject { id: leak.id.clone(), name: leak.name.clone(), labels: BTreeMap::new(), life: None };
    Journal::new(state_root, about).publish([what]);
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn leak(id: &str, thing: Thing, age_s: u64) -> Leak {
        let name = Some("web".to_owned());
        Leak { id: id.to_owned(), name, thing, processes: Vec::new(), age_s, claimed: true }
    }

    fn path() -> PathBuf {
        PathBuf::from("/p")
    }

    fn rules() -> GcRules {
        GcRules { older_than: Duration::from_mins(1), is_named: false, is_complete: true }
    }

    /// spec: 5.3, 5.9, 5.10
    #[test]
    fn each_rule_keeps_what_may_live() {
        let cgroup = |age| leak("a", Thing::Cgroup { path: path() }, age);
        assert_eq!(rules().keep_reason(&cgroup(60)), None);
        assert_eq!(rules().keep_reason(&cgroup(59)), Some(KeepReason::Young));
        let blind = GcRules { is_complete: false, ..rules() };
        assert_eq!(blind.keep_reason(&cgroup(60)), Some(KeepReason::Unread));
        let foreign = Leak { claimed: false, ..cgroup(60) };
        assert_eq!(rules().keep_reason(&foreign), Some(KeepReason::OtherRoot));
        assert_eq!(GcRules { is_named: true, ..rules() }.keep_reason(&foreign), None);
        // Neither a name nor age makes the end of a living sandbox a collection.
        let living = leak("a", Thing::Unreachable { path: path() }, 60);
        assert_eq!(GcRules { is_named: true, ..rules() }.keep_reason(&living), Some(KeepReason::Supervised));
        let lost = |begun| leak("a", Thing::Record { path: path(), command: String::new(), begun }, 0);
        assert_eq!(blind.keep_reason(&lost(true)), None);
        assert_eq!(rules().keep_reason(&lost(false)), Some(KeepReason::Young));
    }

    /// spec: 5.6, 5.9
    #[test]
    fn a_name_means_the_newest_and_a_leak_before_what_has_ended() {
        let ended = |id, age| leak(id, Thing::Ended { path: path(), command: String::new() }, age);
        let lost = leak("c", Thing::Record { path: path(), command: String::new(), begun: true }, 99);
        let mut leaks = vec![ended("a", 50), ended("b", 10)];
        assert_eq!(named_sandbox(&leaks, "web"), Some("b"));
        leaks.push(lost);
        assert_eq!(named_sandbox(&leaks, "web"), Some("c"));
        assert_eq!(named_sandbox(&leaks, "a"), Some("a"));
        assert_eq!(named_sandbox(&leaks, ""), None);
        assert_eq!(named_sandbox(&leaks, "w"), None);
    }
}
