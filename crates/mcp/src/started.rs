//! The sandboxes that this server has started.

use std::sync::{Mutex, PoisonError, RwLock};

use crate::answer::ToolError;

/// The ids of the sandboxes that this server has started, and whether it starts more.
#[derive(Debug, Default)]
pub(crate) struct Started {
    /// The ids, the youngest last.
    ids: Mutex<Vec<String>>,
    /// Whether the server ends. Each start holds the lock for reading.
    ending: RwLock<bool>,
}

impl Started {
    /// Calls `start`, which returns the id of a new sandbox.
    ///
    /// # Errors
    /// Those of `start`, or that the server ends.
    pub(crate) fn add(&self, start: impl FnOnce() -> Result<String, ToolError>) -> Result<String, ToolError> {
        let ending = self.ending.read().unwrap_or_else(PoisonError::into_inner);
        if *ending {
            return Err(ToolError::new("the server ends and starts nothing more"));
        }
        let id = start()?;
        // A panic elsewhere leaves the list whole.
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
        Ok(id)
    }

    /// Tells whether this server has started the sandbox.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|one| one == id)
    }

    /// Waits for the starts that are under way, allows no more, and returns all ids.
    pub(crate) fn close(&self) -> Vec<String> {
        *self.ending.write().unwrap_or_else(PoisonError::into_inner) = true;
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_started_once_the_server_ends() {
        let started = Started::default();
        started.add(|| Ok("a".to_owned())).unwrap();
        started.add(|| Err(ToolError::new("no"))).unwrap_err();
        assert!(started.has("a") && !started.has("b"));
        assert_eq!(started.close(), ["a"]);
        started.add(|| unreachable!()).unwrap_err();
    }
}
