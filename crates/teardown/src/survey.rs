//! What one look at the members of a sandbox has brought, and what follows from it.

use penfold_process::{Completeness, Stat};

/// Whether anybody is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Population {
    /// It was seen that nobody is.
    Nobody,
    /// Somebody was seen.
    Somebody,
    /// Nobody was seen, and not all could be looked at: that is not "nobody".
    Unknown,
}

/// The members that one look has found. That none was found says nothing by itself: ask for the [`Population`].
#[derive(Debug)]
#[must_use = "a look that was not complete proves nothing"]
pub struct Survey {
    seen: Vec<Stat>,
    completeness: Completeness,
}

impl Survey {
    /// What was seen, and whether that is all.
    pub fn new(seen: Vec<Stat>, completeness: Completeness) -> Survey {
        Survey { seen, completeness }
    }

    /// The members that were seen, parents before children.
    pub fn seen(&self) -> &[Stat] {
        &self.seen
    }

    /// As [`Survey::seen`], for who acts upon them and looks again.
    pub fn into_seen(self) -> Vec<Stat> {
        self.seen
    }

    /// How much of what there is could be looked at.
    pub fn completeness(&self) -> Completeness {
        self.completeness
    }

    /// Whether anybody is there.
    pub fn population(&self) -> Population {
        match (self.seen.is_empty(), self.completeness) {
            (false, _) => Population::Somebody,
            (true, Completeness::Complete) => Population::Nobody,
            (true, Completeness::OwnOnly | Completeness::Incomplete) => Population::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 2.1
    #[test]
    fn only_a_complete_look_says_that_nobody_is_there() {
        let of = |completeness| Survey::new(Vec::new(), completeness).population();
        assert_eq!(of(Completeness::Complete), Population::Nobody);
        assert_eq!(of(Completeness::OwnOnly), Population::Unknown);
        assert_eq!(of(Completeness::Incomplete), Population::Unknown);
    }
}
