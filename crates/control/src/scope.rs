//! The sandboxes that a caller may know of: all of a state root, or those of one tenant.
//!
//! Only looks for sandboxes keep to a scope. What acts on a sandbox that was found sees the whole root: its end must find
//! everything of it, whoever has started that.

use std::io;
use std::path::{Path, PathBuf};

use penfold_state::{Files, names};

/// The sandboxes of a state root that a caller may know of; for all others there is nothing there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    root: PathBuf,
    /// The tenant of the caller, if it is one.
    own: Option<String>,
    /// The tenant that the caller was while there were others.
    former: Option<String>,
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
        Scope { root: root.to_owned(), own: None, former: None, reach: Reach::All }
    }

    /// The sandboxes of one tenant, under the names that the tenant has given them. A tenant who `is_alone` has those that
    /// belong to none, too.
    pub fn of_tenant(root: &Path, name: &str, is_alone: bool) -> Scope {
        let reach = if is_alone { Reach::Unowned } else { Reach::Own };
        Scope { root: root.to_owned(), own: Some(name.to_owned()), former: None, reach }
    }

    /// All sandboxes of a state root, for a tenant: those of others are called `TENANT~NAME`.
    pub fn of_admin(root: &Path, name: &str) -> Scope {
        Scope { root: root.to_owned(), own: Some(name.to_owned()), former: None, reach: Reach::All }
    }

    /// The sandboxes that belong to no tenant, for a caller who is told apart from nobody, and those of the tenant that the
    /// caller was while there were others.
    pub fn of_nobody(root: &Path, former: &str) -> Scope {
        Scope { root: root.to_owned(), own: None, former: Some(former.to_owned()), reach: Reach::Unowned }
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

    /// Tells whether the sandbox of this record is one of them.
    pub fn has_record(&self, files: &Files) -> bool {
        self.is_whole() || self.has_tenant(tenant_of_record(files).as_deref())
    }

    /// Tells whether the sandboxes of this tenant, or of none, are among them.
    pub fn has_tenant(&self, owner: Option<&str>) -> bool {
        self.is_whole() || self.is_own(owner)
    }

    /// Tells whether the sandboxes of this tenant, or of none, are those of the caller.
    pub fn is_own(&self, owner: Option<&str>) -> bool {
        owner == self.own.as_deref()
            || owner.map_or(self.reach == Reach::Unowned, |owner| self.former.as_deref() == Some(owner))
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
    pub fn held_names(&self, word: &str) -> impl Iterator<Item = String> {
        let is_more = self.own.is_some() && self.has_unowned();
        [Some(self.held_name(word)), is_more.then(|| word.to_owned())].into_iter().flatten()
    }

    /// Tells whether a word of the caller means the sandbox that holds this name.
    pub fn means(&self, word: &str, held: Option<&str>) -> bool {
        held.is_some_and(|held| self.held_names(word).any(|name| name == held))
    }

    /// Returns a name that is held as the caller has to say it.
    pub fn shown_name(&self, held: &str) -> String {
        let is_own = names::tenant_in(held) == self.own.as_deref();
        if is_own { names::name_in(held) } else { held }.to_owned()
    }
}

/// Returns the tenant to whom the sandbox of a record belongs. A report tells it of a record whose intent is damaged.
pub(crate) fn tenant_of_record(files: &Files) -> Option<String> {
    let labels = match files.intent() {
        Ok(intent) => intent.labels,
        Err(_) => files.report().ok().flatten()?.labels,
    };
    names::tenant_of(&labels).map(str::to_owned)
}
