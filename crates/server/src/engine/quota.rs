//! The most living sandboxes that each tenant can have.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use penfold_control::{Resolver, view};
use penfold_state::names;

use super::EngineError;
use crate::tokens::Tenant;

/// The label of what was started with the only token of a server, if that has no name.
pub(super) const LABEL: &str = "penfold.token";

/// How many sandboxes each tenant has at most. The counts only grow; at the limit, the sandboxes are counted.
#[derive(Debug)]
pub(super) struct Quota {
    most: usize,
    counts: Mutex<HashMap<String, Count>>,
}

/// The sandboxes of a tenant.
#[derive(Debug)]
struct Count {
    /// Those that were counted, or started since.
    known: usize,
    /// Those that are being started: some of them may be counted, too.
    starting: usize,
}

/// A sandbox that is about to be started. Dropped before, it was not.
#[derive(Debug)]
pub(super) struct Place<'a> {
    quota: &'a Quota,
    label: String,
    is_started: bool,
}

/// Returns the label of the sandboxes of a tenant.
pub(super) fn label(tenant: &Tenant) -> (&'static str, &str) {
    tenant.name.as_ref().map_or((LABEL, "1"), |name| (names::TENANT, name))
}

impl Quota {
    pub(super) fn new(most: usize) -> Quota {
        Quota { most, counts: Mutex::default() }
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<String, Count>> {
        // A panic elsewhere leaves no count half written.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a sandbox that is about to be created.
    ///
    /// # Errors
    /// [`EngineError::TooMany`] at the limit.
    pub(super) fn take(&self, tenant: &Tenant, root: &Path) -> Result<Place<'_>, EngineError> {
        let most = tenant.sandboxes.unwrap_or(self.most);
        let label = label(tenant);
        let mut counts = self.counts();
        // A server that was just started knows of none yet.
        let count = counts.entry(label.1.to_owned()).or_insert(Count { known: most, starting: 0 });
        if count.known + count.starting >= most {
            count.known = living(label, root)?;
        }
        if count.known + count.starting >= most {
            return Err(EngineError::TooMany { most });
        }
        count.starting += 1;
        Ok(Place { quota: self, label: label.1.to_owned(), is_started: false })
    }
}

impl Place<'_> {
    /// Notes that the sandbox was started.
    pub(super) fn fill(mut self) {
        self.is_started = true;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.quota.counts().get_mut(&self.label) {
            count.starting = count.starting.saturating_sub(1);
            count.known += usize::from(self.is_started);
        }
    }
}

/// Counts the living sandboxes with a label.
fn living((key, value): (&str, &str), root: &Path) -> Result<usize, EngineError> {
    let all = view::select_sandboxes(&Resolver::new(root), false).map_err(EngineError::Look)?;
    Ok(all.iter().filter(|(_, seen)| seen.labels.get(key).is_some_and(|own| own == value)).count())
}
