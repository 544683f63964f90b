//! What several verbs take: the flags of all, ids and filters, bounds, patience, signals, and what is said of wrong ones.

pub(crate) mod bounds;
pub(crate) mod ids;
pub(crate) mod patience;
pub(crate) mod signal;
pub(crate) mod usage;
pub(crate) mod verb;
