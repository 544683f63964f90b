//! `penfold run` in the foreground.

mod agent_settings;
mod asked;
mod degrade;
mod descriptors;
mod dropin;
mod faults;
mod idle;
mod init;
mod interrupt;
mod jail;
mod launch_faults;
pub mod launcher;
mod limits;
mod nested;
mod proc;
mod promptness;
mod records;
mod scratch;
mod sh;
mod signals;
mod spec_file;
mod start;
mod stdin_close;
mod terminal;
mod trap;
mod usage;
mod vmm;
