//! The result of one look at the members of a sandbox.

use penfold_process::{Completeness, Stat};

/// Whether a member is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Population {
    /// No member is alive: this was verified.
    Nobody,
    /// At least one member is alive.
    Somebody,
    /// No member was found, but not everything could be read: this does not mean "nobody".
    Unknown,
}

/// The members that one look has found. An empty list says nothing by itself: use [`Survey::population`].
#[derive(Debug)]
#[must_use = "a look that was not complete proves nothing"]
pub struct Survey {
    seen: Vec<Stat>,
    completeness: Completeness,
}

impl Survey {
    /// Makes a survey of the members found and the completeness of the look.
    pub fn new(seen: Vec<Stat>, completeness: Completeness) -> Survey {
        Survey { seen, completeness }
    }

    /// Returns the members that were found, parents before children.
    pub fn seen(&self) -> &[Stat] {
        &self.seen
    }

    /// Like [`Survey::seen`], by value.
    pub fn into_seen(self) -> Vec<Stat> {
        self.seen
    }

    /// Returns how much could be read.
    pub fn completeness(&self) -> Completeness {
        self.completeness
    }

    /// Tells whether a member is alive.
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
