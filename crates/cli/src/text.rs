//! What people and programs read: lines, tables and templates, times, the summary of an end.

pub(crate) mod leak;
pub(crate) mod lines;
pub(crate) mod process_tree;
pub(crate) mod row;
pub(crate) mod summary;
pub(crate) mod template;
pub(crate) mod time;
