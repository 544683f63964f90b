//! The sandboxes that a caller may know of: all of a state root, or those of one tenant.
//!
//! Only looks for sandboxes keep to a scope. What acts on a sandbox that was found sees the whole root: its end must find
//! everything of it, whoever has started that.

use std::io;
use std::path::{Path, PathBuf};

use penfold_state::intent::Intent;
use penfold_state::names;

/// The sandboxes of a state root that a caller may know of; for all others there is nothing there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    root: PathBuf,
    /// The tenant of the caller, if it is one.
    own: Option<String>,
    reach: Reach,
}

/// How far a scope reaches beyond the sandboxes of the caller's own tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Own,
    /// To those that belong to no tenant.
    Unowned,
    All,
}

impl Scope {
    /// All sandboxes of a state root. Those of tenants are called `TENANT~NAME`.
    pub fn whole(root: &Path) -> Scope {
        Scope { root: root.to_owned(), own: None, reach: Reach::All }
    }

    /// The sandboxes of one tenant, under the names that the tenant has given them. A tenant who `is_alone` has those that
    /// belong to none, too.
    pub fn of_tenant(root: &Path, name: &str, is_alone: bool) -> Scope {
        let reach = if is_alone { Reach::Unowned } else { Reach::Own };
        Scope { root: root.to_owned(), own: Some(name.to_owned()), reach }
    }

    /// All sandboxes of a state root, for a tenant: those of others are called `TENANT~NAME`.
    pub fn of_admin(root: &Path, name: &str) -> Scope {
        Scope { root: root.to_owned(), own: Some(name.to_owned()), reach: Reach::All }
    }

    /// Returns the state root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Tells whether all sandboxes of the root are among them.
    pub fn is_whole(&self) -> bool {
        self.reach == Reach::All
    }

    /// Tells whether sandboxes that belong to no tenant are among them.
    pub fn has_unowned(&self) -> bool {
        self.reach != Reach::Own
    }

    /// Tells whether the sandbox of this intent is one of them; without an intent, it belongs to no tenant.
    pub fn has(&self, intent: Option<&Intent>) -> bool {
        self.has_tenant(intent.and_then(Intent::tenant))
    }

    /// Tells whether the sandboxes of this tenant, or of none, are among them.
    pub fn has_tenant(&self, owner: Option<&str>) -> bool {
        self.is_whole() || self.is_own(owner)
    }

    /// Tells whether the sandboxes of this tenant, or of none, are those of the caller.
    pub fn is_own(&self, owner: Option<&str>) -> bool {
        owner == self.own.as_deref() || (owner.is_none() && self.reach == Reach::Unowned)
    }

    /// Returns the name that a new sandbox of the caller holds below the state root.
    pub fn held_name(&self, name: &str) -> String {
        names::held_name(self.own.as_deref(), name)
    }

    /// Returns the living sandbox that has a name.
    ///
    /// # Errors
    /// When the holder cannot be determined.
    pub fn name_holder(&self, name: &str) -> io::Result<Option<String>> {
        self.held_names(name).find_map(|held| names::name_holder(&self.root, &held).transpose()).transpose()
    }

    /// Returns the sandbox that has a name or had it last, if the file of the name still exists.
    pub(crate) fn last_holder(&self, name: &str) -> io::Result<Option<String>> {
        self.held_names(name).find_map(|held| names::last_holder(&self.root, &held).transpose()).transpose()
    }

    /// Returns what a word of the caller may be held as, what is the caller's first.
    fn held_names(&self, word: &str) -> impl Iterator<Item = String> {
        let is_more = self.own.is_some() && self.has_unowned();
        [Some(self.held_name(word)), is_more.then(|| word.to_owned())].into_iter().flatten()
    }

    /// Returns the name of a sandbox as the caller has to say it.
    pub(crate) fn shown_name(&self, intent: &Intent) -> Option<String> {
        if intent.tenant() == self.own.as_deref() { intent.name.clone() } else { intent.held_name() }
    }
}
