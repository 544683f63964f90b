//! The output format: lines, tables, templates, times, and the summary at the end of a sandbox.

pub(crate) mod leak;
pub(crate) mod lines;
pub(crate) mod live_line;
pub(crate) mod metrics;
pub(crate) mod process_tree;
pub(crate) mod remark;
pub(crate) mod requester;
pub(crate) mod row;
pub(crate) mod summary;
pub(crate) mod table;
pub(crate) mod template;
pub(crate) mod terminal_output;
pub(crate) mod time;
pub(crate) mod usage;
pub(crate) mod users;
pub(crate) mod vm;
