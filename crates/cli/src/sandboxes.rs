//! The steps that verbs share: select sandboxes, connect to a supervisor, collect the results.

pub(crate) mod conclude;
pub(crate) mod connect;
pub(crate) mod find;
pub(crate) mod other_roots;
pub(crate) mod sampler;
pub(crate) mod select;
pub(crate) mod tally;
