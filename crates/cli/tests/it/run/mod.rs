//! `penfold run` in the foreground.

mod asked;
mod degrade;
mod descriptors;
mod dropin;
mod faults;
pub mod front;
mod idle;
mod init;
mod interrupt;
mod launch_faults;
mod nested;
mod proc;
mod promptness;
mod records;
mod scratch;
mod signals;
mod start;
mod terminal;
mod trap;
mod usage;
