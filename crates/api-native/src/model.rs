//! The bodies of answers about sandboxes.

pub(super) use penfold_api::{EndResult, Ended, Sandbox, SandboxPage};
