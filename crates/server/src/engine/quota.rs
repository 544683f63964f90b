//! The most living sandboxes that the callers with one token can have.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;

use penfold_control::{Resolver, view};

use super::EngineError;

/// The label with the place of the token in the list.
pub(super) const LABEL: &str = "penfold.token";

/// How many sandboxes each token has at most. The count only grows; at the limit, the sandboxes are counted.
#[derive(Debug)]
pub(super) struct Quota {
    most: usize,
    counts: Mutex<HashMap<usize, usize>>,
}

impl Quota {
    pub(super) fn new(most: usize) -> Quota {
        Quota { most, counts: Mutex::default() }
    }

    /// Counts a sandbox that is about to be created.
    ///
    /// # Errors
    /// [`EngineError::TooMany`] at the limit.
    pub(super) fn take(&self, token: usize, root: &Path) -> Result<(), EngineError> {
        // A panic elsewhere leaves no count half written.
        let mut counts = self.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A server that was just started knows of none yet.
        let count = counts.entry(token).or_insert(self.most);
        if *count >= self.most {
            *count = living(token, root)?;
        }
        if *count >= self.most {
            return Err(EngineError::TooMany { most: self.most });
        }
        *count += 1;
        Ok(())
    }
}

/// Counts the living sandboxes of a token.
fn living(token: usize, root: &Path) -> Result<usize, EngineError> {
    let all = view::select_sandboxes(&Resolver::new(root), false).map_err(EngineError::Look)?;
    let token = token.to_string();
    Ok(all.iter().filter(|(_, seen)| seen.labels.get(LABEL) == Some(&token)).count())
}
