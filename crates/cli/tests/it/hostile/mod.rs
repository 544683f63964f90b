//! Hostile trees in every mode, commands that attack penfold, and soaks.

mod adversary;
mod locked_leaf;
pub mod matrix;
mod soak;
mod soak_detached;
