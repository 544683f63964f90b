//! What several verbs take: the flags of all, ids and filters, bounds, patience, and what is said of wrong ones.

pub(crate) mod bounds;
pub(crate) mod ids;
pub(crate) mod patience;
pub(crate) mod usage;
pub(crate) mod verb;
