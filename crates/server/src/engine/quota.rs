//! The most living sandboxes that each tenant can have.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;

use penfold_control::{Resolver, view};
use penfold_state::names;

use super::EngineError;
use crate::tokens::Tenant;

/// The label of what was started with the only token of a server, if that has no name.
pub(super) const LABEL: &str = "penfold.token";

/// How many sandboxes each tenant has at most. The count only grows; at the limit, the sandboxes are counted.
#[derive(Debug)]
pub(super) struct Quota {
    most: usize,
    counts: Mutex<HashMap<String, usize>>,
}

/// Returns the label of the sandboxes of a tenant.
pub(super) fn label(tenant: &Tenant) -> (&'static str, &str) {
    tenant.name.as_ref().map_or((LABEL, "1"), |name| (names::TENANT, name))
}

impl Quota {
    pub(super) fn new(most: usize) -> Quota {
        Quota { most, counts: Mutex::default() }
    }

    /// Counts a sandbox that is about to be created.
    ///
    /// # Errors
    /// [`EngineError::TooMany`] at the limit.
    pub(super) fn take(&self, tenant: &Tenant, root: &Path) -> Result<(), EngineError> {
        let most = tenant.sandboxes.unwrap_or(self.most);
        let label = label(tenant);
        // A panic elsewhere leaves no count half written.
        let mut counts = self.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A server that was just started knows of none yet.
        let count = counts.entry(label.1.to_owned()).or_insert(most);
        if *count >= most {
            *count = living(label, root)?;
        }
        if *count >= most {
            return Err(EngineError::TooMany { most });
        }
        *count += 1;
        Ok(())
    }
}

/// Counts the living sandboxes with a label.
fn living((key, value): (&str, &str), root: &Path) -> Result<usize, EngineError> {
    let all = view::select_sandboxes(&Resolver::new(root), false).map_err(EngineError::Look)?;
    Ok(all.iter().filter(|(_, seen)| seen.labels.get(key).is_some_and(|own| own == value)).count())
}
