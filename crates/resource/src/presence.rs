//! The result of a look.

/// The result of a look at a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResourcePresence {
    /// The resource does not exist.
    Absent,
    /// The resource, or a part of it, exists.
    Ours {
        /// The processes and mounts that hold it, as far as they can be seen.
        held_by: Vec<String>,
    },
    /// There is something of this name that is not the sandbox's.
    Foreign {
        /// The evidence.
        why: String,
    },
}
