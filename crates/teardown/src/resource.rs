//! What a sandbox owns besides its processes.

use std::time::Instant;

/// Anything but a process that must go with its sandbox: a directory, a mount, a record.
pub trait Resource {
    /// What it is, with its place: `directory /tmp/penfold-3f9a1c2b7d04`.
    fn describe(&self) -> String;

    /// Makes it go. Called again after an interruption, so "already gone" is success. `forced` says that members had to
    /// be ended, so that they could not put away what they had made themselves.
    ///
    /// # Errors
    /// What stands in the way; the resource is then reported as a survivor.
    fn release(&mut self, forced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;

    /// Whether the others are known by it when all processes of the sandbox are gone.
    fn is_record(&self) -> bool {
        false
    }
}

/// Releases resources in the reverse order of their acquisition and tells of each, with the reason if it stays.
///
/// A record stays where something else does: by it the next command finds the rest.
pub fn release(
    resources: &mut [Box<dyn Resource>],
    forced: bool,
    mut told: impl FnMut(&dyn Resource, Instant, Option<String>),
) {
    let mut stays = false;
    for resource in resources.iter_mut().rev() {
        if stays && resource.is_record() {
            continue;
        }
        let begun = Instant::now();
        let reason = resource.release(forced).err().map(|error| error.to_string());
        stays |= reason.is_some();
        told(resource.as_ref(), begun, reason);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    struct Thing {
        name: &'static str,
        stuck: bool,
        released: Rc<RefCell<Vec<&'static str>>>,
    }

    impl Resource for Thing {
        fn describe(&self) -> String {
            self.name.to_owned()
        }

        fn release(&mut self, _forced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            if self.stuck {
                return Err("it is stuck".into());
            }
            self.released.borrow_mut().push(self.name);
            Ok(())
        }

        fn is_record(&self) -> bool {
            self.name == "record"
        }
    }

    fn released(stuck: bool) -> (Vec<&'static str>, Vec<String>) {
        let released = Rc::new(RefCell::new(Vec::new()));
        let thing = |name, stuck| -> Box<dyn Resource> {
            Box::new(Thing { name, stuck, released: Rc::clone(&released) })
        };
        let mut all = [thing("name", false), thing("record", false), thing("directory", stuck)];
        let mut stayed = Vec::new();
        release(&mut all, false, |resource, _, reason| {
            stayed.extend(reason.map(|reason| format!("{}: {reason}", resource.describe())));
        });
        (released.take(), stayed)
    }

    /// spec: 1.6
    #[test]
    fn a_record_stays_where_something_else_does() {
        assert_eq!(released(false), (vec!["directory", "record", "name"], Vec::new()));
        assert_eq!(released(true), (vec!["name"], vec!["directory: it is stuck".to_owned()]));
    }
}
