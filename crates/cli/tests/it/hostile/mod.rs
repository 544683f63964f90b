//! Hostile trees in every mode, and soaks.

mod adversary;
mod detached;
mod matrix;
mod soak;
mod soak_detached;
