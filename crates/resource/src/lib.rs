//! What a sandbox owns besides its processes: directories, network namespaces, links, taps, mounts, and what its command
//! makes.
//!
//! A [`Request`](request::Request) is what a user writes. [`Request::plan`](request::Request::plan) turns it into
//! [`PlannedResource`] resources with final names and paths. The plan is in the record before anything of it exists, so that
//! another process can release everything after a crash at any point.
//!
//! Each kind of resource is one file, with `create`, `probe` and `release`.
//!
//! Non-goals: processes and cgroups, which end before any resource is released; the order of releases, which is the
//! reverse of [`Request::plan`](request::Request::plan).
//!
//! Invariants: only what carries the mark of its owner is removed, except for [`OwnResource`] resources, whose names were free
//! before the command started. A release succeeds only after it has seen that nothing is left. Every wait has a deadline.

mod cidr;
pub mod clear;
mod copies;
mod deadline;
mod directory;
mod error;
mod holders;
mod inside;
mod links;
mod mistake;
mod mount;
mod mount_table;
mod netlink;
mod netns;
mod nft;
mod nsid;
mod own;
mod owned;
mod owner;
mod planned;
mod presence;
pub mod request;
mod tap;
pub mod traces;
mod veth;

pub use cidr::Cidr;
pub use directory::{Directory, remove_directory, remove_directory_in_place};
pub use error::ResourceError;
pub use holders::users_of_directory;
pub use mount::{FileSystem, Mount, Origin};
pub use netns::Netns;
pub use nft::nft_tables;
pub use own::OwnResource;
pub use owned::{OwnedResource, ReleaseDeadline};
pub use owner::ResourceOwner;
pub use planned::PlannedResource;
pub use presence::ResourcePresence;
pub use tap::Tap;
pub use veth::Veth;
