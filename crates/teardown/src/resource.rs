//! The resources of a sandbox: everything that it owns besides its processes.

use std::time::Instant;

/// A directory, a mount, a record: anything but a process that must go with its sandbox.
pub trait Resource {
    /// Returns the kind of resource with its path: `directory /tmp/penfold-3f9a1c2b7d04`.
    fn describe(&self) -> String;

    /// Removes the resource. The call may be repeated after an interruption, so "already gone" is success.
    ///
    /// `forced` says that members had to be ended, and so could not clean up their own files.
    ///
    /// # Errors
    /// The obstacle; the resource is then reported as a survivor.
    fn release(&mut self, forced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;

    /// Tells whether the resource is the record, which still names the other resources when all processes are gone.
    fn is_record(&self) -> bool {
        false
    }
}

/// Releases resources in the reverse order of their acquisition and reports each, with the reason if one stays.
///
/// The record stays if another resource does: the record tells the next command about it.
pub fn release_resources(
    resources: &mut [Box<dyn Resource>],
    forced: bool,
    mut report: impl FnMut(&dyn Resource, Instant, Option<String>),
) {
    let mut stays = false;
    for resource in resources.iter_mut().rev() {
        if stays && resource.is_record() {
            continue;
        }
        let begun = Instant::now();
        let reason = resource.release(forced).err().map(|error| error.to_string());
        stays |= reason.is_some();
        report(resource.as_ref(), begun, reason);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    struct TestResource {
        name: &'static str,
        stuck: bool,
        released: Rc<RefCell<Vec<&'static str>>>,
    }

    impl Resource for TestResource {
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
            Box::new(TestResource { name, stuck, released: Rc::clone(&released) })
        };
        let mut all = [thing("name", false), thing("record", false), thing("directory", stuck)];
        let mut stayed = Vec::new();
        release_resources(&mut all, false, |resource, _, reason| {
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
