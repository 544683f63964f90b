//! The arguments that several verbs share, and the messages for wrong command lines.

pub(crate) mod bounds;
pub(crate) mod event_log;
pub(crate) mod ids;
pub(crate) mod limits;
pub(crate) mod patience;
pub(crate) mod rare;
pub(crate) mod resources;
pub(crate) mod usage;
pub(crate) mod user;
pub(crate) mod verb;
