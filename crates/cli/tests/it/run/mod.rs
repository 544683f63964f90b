//! `penfold run` in the foreground.

mod asked;
mod degrade;
mod descriptors;
mod dropin;
mod faults;
mod guard;
mod idle;
mod init;
mod interrupt;
mod jail;
mod jail_seccomp;
mod launch_faults;
pub mod launcher;
mod limits;
mod nested;
mod proc;
mod promptness;
mod records;
mod scratch;
mod signals;
mod spec_file;
mod start;
mod terminal;
mod trap;
mod usage;
mod vmm;
