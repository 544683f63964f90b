//! What a sandbox owns besides its processes: directories, network namespaces, links, taps, mounts, and what its command
//! makes.
//!
//! A [`Request`](request::Request) is what a user writes. [`Request::plan`](request::Request::plan) turns it into
//! [`Planned`] resources with final names and paths. The plan is in the record before anything of it exists, so that
//! another process can release everything after a crash at any point.
//!
//! Each kind of resource is one file, with `create`, `probe` and `release`.

use std::io;
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// The sandbox that owns resources; its traces are in names, attributes and comments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The short id of the sandbox.
    pub id: String,
    /// The id of the boot in which the sandbox was made.
    pub boot: String,
}
