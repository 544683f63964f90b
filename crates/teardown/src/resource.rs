//! What a sandbox owns besides its processes.

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
}
