//! Ids that clients choose. Nothing is started twice under one id, also by two servers with one state root.
//!
//! - [`create_once`] — a sandbox for an idempotency key.
//! - [`IdClaim`] — the claim of an id on disk, for something in a sandbox; [`hashed_name`] makes a name of any id.
//! - [`Places`] — where things with ids are; [`Locks`] — locks by id. Both are memory only, and can be made again from the disk.

mod claim;
mod idempotency;
mod places;

pub use crate::locks::Locks;
pub use claim::{ClaimError, IdClaim, forget_claim, hashed_name};
pub use idempotency::{Created, KeyError, create_once};
pub use places::{Places, Reserved, Spot};
