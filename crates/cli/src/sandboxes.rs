//! What verbs share that act on sandboxes: which are meant, who is asked, what has become of them.

pub(crate) mod conclude;
pub(crate) mod connect;
pub(crate) mod find;
pub(crate) mod select;
pub(crate) mod tally;
