//! The rights of a process in a jail: those of its user, and no capabilities.

use std::marker::PhantomData;

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// The capabilities of this thread are put aside until this value is dropped.
#[derive(Debug)]
pub(crate) struct WithoutCapabilities {
    before: Option<CapabilitySets>,
    /// Capabilities belong to a thread.
    _thread: PhantomData<*const ()>,
}

impl WithoutCapabilities {
    /// Puts the capabilities of this thread aside, if `is_jailed`.
    ///
    /// # Errors
    /// Those of capset(2); then nothing has changed.
    pub(crate) fn of(is_jailed: bool) -> Result<WithoutCapabilities, Errno> {
        let mut before = None;
        if is_jailed {
            let sets = capabilities(None)?;
            set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..sets })?;
            before = Some(sets);
        }
        Ok(WithoutCapabilities { before, _thread: PhantomData })
    }
}

impl Drop for WithoutCapabilities {
    fn drop(&mut self) {
        if let Some(sets) = self.before {
            // The permitted set is unchanged, so this cannot fail.
            let _ = set_capabilities(None, sets);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 19.6
    #[test]
    fn capabilities_come_back() {
        let now = || capabilities(None).unwrap().effective;
        let before = now();
        let aside = WithoutCapabilities::of(true).unwrap();
        assert_eq!(now(), CapabilitySet::empty());
        drop(aside);
        assert_eq!(now(), before);
        drop(WithoutCapabilities::of(false).unwrap());
        assert_eq!(now(), before);
    }
}
